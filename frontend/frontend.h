// The frontend: from a model file (CONTRACT section 3) to a Module of phase `model`. Everything wrong with
// the file is found in one run and reported at the narrowest text that is wrong.
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

// The module of the model file `text`, or nothing and the reasons in `diag`, which must have been made from
// the same text (it prints the lines). The module's `step` yields the loss sum and the count of its elements,
// `eval` also the metrics, and `init` fills the parameters. `file_name` becomes Module::source.
std::optional<ir::Module> compile_model(std::string_view text, std::string_view file_name,
                                        const std::vector<Override>& overrides, Diag& diag);

}  // namespace gacc
