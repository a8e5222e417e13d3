// The scaling of a module's loss by its settings: what autodiff and accumulate must leave open for the pass
// loss-scale.
#pragma once
#include "ir/module.h"

namespace gacc::passes {

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

}  // namespace gacc::passes
