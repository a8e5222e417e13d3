// A text of the IR as a model file: a module in phase `model` with its settings, which are read as the tables of a
// TOML file are, so that `--set` and all checks are the same.
#pragma once
#include "frontend/frontend.h"

namespace gacc::frontend {

// Returns true if a model's text is IR, not TOML: it begins with `module @`, after comments.
bool is_ir(std::string_view text);

// Compiles such a text as compile_model does. Its step and eval yield a loss, or the output of the forward pass: the
// table [loss] is then lowered to them. `layers` receives the parameters.
std::optional<ir::Module> compile_ir(std::string_view text, std::string_view file_name,
                                     const std::vector<Override>& overrides, Diag& diag,
                                     std::vector<LayerSummary>* layers, bool strict);

}  // namespace gacc::frontend
