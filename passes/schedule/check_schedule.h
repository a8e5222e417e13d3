// Checks that a schedule is that of its kernels; schedule.h has the same for a module alone.
#pragma once
#include <string>

#include "kernels/program.h"

namespace gacc::passes {

// Returns "" where the functions, operands, extents, grids, blocks, tiles and shared memory of a schedule are those
// of its kernels, and its launches wait as the streams want it; else one sentence about the first that differs (R29).
// The module verifies. `program` is the module's for its target.
std::string check_schedule(const ir::Module& module, const kernels::ModuleKernels& program);

}  // namespace gacc::passes
