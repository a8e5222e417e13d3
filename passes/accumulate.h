// Declarations of what closes a window: its scaled loss, its sums (with lanes those of their tree), and the update.
#pragma once
#include "ir/builder.h"
#include "passes/pass.h"

namespace gacc::passes {

// A trained parameter, the accumulator of its gradient, those of its further uses and of what additions lose
// (train.require = "bits") and, for optimizer.second_moment = "micro", that of the squares of its launches' mean
// gradients.
struct Trained {
  ir::BufferId parameter, gradient;
  std::vector<ir::BufferId> uses{};
  std::optional<ir::BufferId> squares{};
};

// The buffers of what the additions to @loss.sum and @loss.weights lose, where there are some.
constexpr std::string_view kLossLow = "loss.low", kWeightsLow = "loss.weights.low";

// Writes the update region for the optimizer of the settings, and its state buffers.
[[nodiscard]] bool build_update(ir::Module& module, const std::vector<Trained>& trained, Diag& diag);

// The scaling of a module's loss by its settings: what autodiff and accumulate must leave open for the pass
// loss-scale.
struct Scaling {
  bool half = false;     // computes in half precision: the seed is of the mean over a full micro-batch
  bool scaled = false;   // there is a scale, in state @loss.scale ...
  bool dynamic = false;  // ... that windows adjust
  double initial = 1;
  // Tells whether the backward pass starts from something else than 1.
  bool seeded() const { return half || scaled; }
};

// precision.compute, and precision.loss_scale: absent or "none", "dynamic", or a number.
Scaling scaling_of(const ir::Module& module);

// Tells whether a window with a non-finite gradient is left out and the run goes on.
bool skips_windows(const ir::Module& module);

// The sums of lanes (setting train.lanes) that one of `ranks` ranks holds at once at most, that of the open lane
// included: lanes close from left to right, and two whole halves of a subtree are added at once.
int64_t most_nodes(int64_t lanes, int64_t ranks);

// The most for any number of ranks from that one on.
int64_t most_nodes_from(int64_t lanes, int64_t ranks);

// Gives every sum of a window the buffers of its nodes, and writes the region `close`. Nothing with one lane.
void build_close(ir::Module& module, Diag& diag);

}  // namespace gacc::passes
