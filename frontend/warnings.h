// Warnings about what a model file says and hardly means. Each names its place and the remedy; `model.allow` silences a
// kind.
#pragma once
#include "frontend/model_file.h"

namespace gacc::frontend {

// Warns of what is seen in the module's step, but for the kinds that `model.allow` lists; `strict`: by errors.
void warn_of_model(const ir::Module& module, const ModelFile& model, bool strict, Diag& diag);
// The kinds of warnings, which `model.allow` takes.
Words warning_names();

}  // namespace gacc::frontend
