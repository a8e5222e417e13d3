// Shared by the two halves of accumulate.
#pragma once
#include "ir/builder.h"
#include "passes/pass.h"

namespace gacc::passes {

// A trained parameter, the accumulator of its gradient, those of its further uses (train.require = "bits") and, for
// optimizer.second_moment = "micro", that of the squares of its launches' mean gradients.
struct Trained {
  ir::BufferId parameter, gradient;
  std::vector<ir::BufferId> uses{};
  std::optional<ir::BufferId> squares{};
};

// Writes the update region for the optimizer of the settings, and its state buffers.
[[nodiscard]] bool build_update(ir::Module& module, const std::vector<Trained>& trained, Diag& diag);

}  // namespace gacc::passes
