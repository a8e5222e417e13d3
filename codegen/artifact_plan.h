// The programs of the plan: for each region the GPU's launches, in order, from the device code.
#pragma once
#include <string>

#include "codegen/nvptx.h"
#include "codegen/plan_writer.h"

namespace gacc {

// Fills plan.programs: the code's own launches where it has merged them, else one for each kernel. False and
// a sentence in `problem` when an operand has no place in the arena (a bug).
[[nodiscard]] bool add_programs(const ir::Module& module, const codegen::DeviceCode& code, Plan& plan,
                                std::string& problem);

}  // namespace gacc
