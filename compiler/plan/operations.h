// A digest of what a step computes, by which a checkpoint tells models apart.
#pragma once
#include <cstdint>

#include "ir/module.h"

namespace gacc {

// Digests what `step` and `eval` write as expressions of inputs, buffers and numbers. So it depends neither on names
// of values, nor on the order of ops, kernels, clones, places or the schedule: what another plan of the same model may
// change.
uint32_t operations_digest(const ir::Module& module);

}  // namespace gacc
