// A published model on the disk: the folder as Hugging Face writes it, its config.json, or a GGUF.
#pragma once
#include "compiler/compile_step.h"
#include "frontend/published.h"

namespace gacc {

// Returns true for a folder and for a file that is called *.json or *.gguf.
bool is_published(const std::string& path);
// Returns the name of the model: that of the folder, or of the GGUF.
std::string published_name(const std::string& path);

// Reads config.json, or what the GGUF says of itself, as the model file that it stands for. `families`: a folder with
// more of them, or "".
std::optional<CompileTrouble> read_published(const std::string& path, const std::string& families,
                                             PublishedOptions options, ModelSource& source);
// Puts adapters of that rank (adapters_of_blocks) before the overrides of a model file.
void add_adapters(const ModelSource& source, int64_t rank, std::vector<Override>& overrides);

}  // namespace gacc
