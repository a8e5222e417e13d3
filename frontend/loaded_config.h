// Compares what a config.json, or a GGUF's metadata, beside weights says with the model that they are loaded into. That
// is read as the compiler reads it, by the same families.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/published.h"
#include "frontend/toml_tree.h"

namespace gacc {

namespace frontend {

// Adds to the module's record of what weights must be like what [load] says: "family=NAME", or the text of one that is
// not built in, with a line "PATH=VALUE" for each place of the model file that the family decides; and
// "module:FILE=PEFT" for each of `modules`.
void note_family(const Node& model, ir::Module& module, Diag& diag);

}  // namespace frontend

// A compiled model, by what it says of the weights that it takes.
struct ModelRecord {
  std::vector<std::string> presumes;  // lines NAME=VALUE, as Plan::presumes has them
  bool tied = false;                  // its head shares the embedding's weight
};

// Returns what is said otherwise than by the model, or may change the function and is not known: a sentence each, with
// the keys and both values. `config`: the text of config.json, or what a GGUF says as PublishedOptions has it.
std::vector<std::string> config_problems(std::string_view config, bool gguf, const ModelRecord& model);

}  // namespace gacc
