// Published models: a config.json, as Hugging Face writes it, or what a GGUF says of itself, to a model file by the
// table of its family (docs/adding-a-family.md).
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/frontend.h"

namespace gacc {

// One NAME.toml: a model file whose strings may be ${EXPRESSION}s.
struct Family {
  std::string file;  // for messages
  std::string text;
};
const std::vector<Family>& built_in_families();

struct PublishedOptions {
  std::string folder{};               // the model's name
  std::optional<int64_t> context{};   // tokens of a window
  std::optional<int64_t> lora{};      // the rank of adapters
  bool pack = false;                  // windows have several documents
  std::vector<Override> overrides{};  // of the model file
  std::string target{};               // "sm_80": not every GPU computes in every type
  // The "config" is what a GGUF says: general.architecture, the keys of its architecture without the name of that in
  // front, "tensors.NAME": the rows of a tensor, of those of the blocks the first's ("tensors.blk.attn_q.weight"), and
  // "values.NAME": the numbers of rope_*.
  bool gguf = false;
  std::string matrices{};  // of a GGUF: the type that most bytes of its matrices have, as "Q4_1"
};

struct PublishedModel {
  std::string text;                 // the model file
  std::string notes{};              // whole lines about what the family's settings became
  std::vector<Location> origins{};  // the places of its values that are from keys of a config.json
  std::string precision_because{};  // why precision.compute is what it is; "" where nothing says so
};

// Returns the model file that a config.json is read as; nothing and whole lines in `problems` when it cannot be one.
// `file` is what messages call it. Of two families that match, the first one counts.
std::optional<PublishedModel> published_model(std::string_view config, const std::string& file,
                                              std::span<const Family> families,
                                              const PublishedOptions& options, std::string& problems);

// Returns what `--lora RANK` sets in a model file: adapters of all products of its blocks.
std::vector<Override> adapters_of_blocks(std::string_view model, int64_t rank);

}  // namespace gacc
