// The joint choice: micro_batch, accumulate, ranks and recompute under memory.budget. Frontend and passes do
// not know each other, so it is here.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frontend/frontend.h"
#include "passes/pass.h"

namespace gacc {

// The model with these overrides in phase fused, or nothing (with the reason reported elsewhere).
using CompileToFused = std::function<std::optional<ir::Module>(const std::vector<Override>& overrides)>;

struct BatchChoice {
  bool done = false;
  std::vector<Override> overrides{};  // to add: train.micro_batch, train.accumulate, train.ranks
  std::string why{};                  // what was chosen and what not, a line each
  std::string problem{};              // when nothing fits: what would, proven
};

// Tells whether the model leaves something to choose, or states a budget that must be shown to hold: with policy
// "budget" the pass recompute keeps it.
bool has_choice(const ir::Module& model);

// `model`: as the frontend made it, with what is "auto" still open. Branch and bound over the micro-batches
// that divide the effective batch: in order of a proven lower bound of the time of an update; ties go to
// fewer launches. A larger budget never gives a longer update by the model. Where train.ranks is open, the
// fewest ranks come first. `refused`: the model leaves nothing open, and the pass recompute found no plan for
// it; what is left is to say what would fit.
BatchChoice choose_batch(const ir::Module& model, const CompileToFused& compile,
                         const passes::Options& options, bool refused = false);

}  // namespace gacc
