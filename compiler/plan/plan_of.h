// The plan of a module: everything that gacc-exec and a device must know (runtime/plan.h).
#pragma once
#include "ir/module.h"
#include "runtime/plan.h"

namespace gacc {

// Returns the plan of a planned module that verifies, without programs (codegen/plan_launches.h).
Plan plan_of(const ir::Module& module);

// Digests what `step` and `eval` write as expressions of inputs, buffers and numbers, by which a checkpoint tells
// models apart. So it depends neither on names of values, nor on the order of ops, kernels, clones, places or the
// schedule: what another plan of the same model may change.
uint32_t operations_digest(const ir::Module& module);

}  // namespace gacc
