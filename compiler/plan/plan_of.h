// The plan of a module: everything that gacc-exec and a device must know (runtime/plan.h).
#pragma once
#include "ir/module.h"
#include "runtime/plan.h"

namespace gacc {

// Returns the plan of a planned module that verifies, without programs (codegen/plan_launches.h).
Plan plan_of(const ir::Module& module);

}  // namespace gacc
