// The frontend: from a model file to a Module of phase `model`. Everything wrong with the file is found in one
// run and reported at the narrowest text that is wrong.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/module.h"

namespace gacc {

// One `--set KEY=VALUE`: KEY is a dotted path in which layers are addressed by name, VALUE is TOML or a bare
// word.
struct Override {
  std::string key, value;
};

// A layer as a user sees it. Blocks are seen by what is in them.
struct LayerSummary {
  std::string name;    // the path, "h.3.mlp.fc"
  std::string type;    // as the model file has it
  std::string tied{};  // the layer whose weight it has
  ir::Shape output{};  // per sample
  int64_t parameters = 0, trained = 0;
};

// The module of the model file `text`, TOML or a text of the IR (frontend/ir_model.h), or nothing and the
// reasons in `diag`, which must have been made from the same text (it prints the lines). The module's `step`
// yields the loss sum and the count of its elements, `eval` also the metrics, and `init` fills the parameters.
// `file_name` becomes Module::source. `layers` receives the layers in the order in which they run, copies of
// repeated blocks included. `strict`: warnings are errors.
std::optional<ir::Module> compile_model(std::string_view text, std::string_view file_name,
                                        const std::vector<Override>& overrides, Diag& diag,
                                        std::vector<LayerSummary>* layers = nullptr, bool strict = false);

}  // namespace gacc
