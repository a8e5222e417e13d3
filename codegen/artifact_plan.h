// The programs of the plan: for each region the GPU's launches, in order, from the device code. No LLVM here:
// what a plan must say follows from the IR alone, and compare_plan.h compares.
#pragma once
#include <string>

#include "codegen/nvptx.h"
#include "codegen/plan_writer.h"

namespace gacc {

// From code.program: names the entries and chooses the kernels of the matrix products and what these do of
// the kernels behind them. False and a sentence in `problem` when a product is too large.
[[nodiscard]] bool choose_kernels(const ir::Module& module, int capability, codegen::DeviceCode& code,
                                  std::string& problem);

// Fills plan.programs: the code's own launches where it has merged them, else one for each kernel. False and
// a sentence in `problem` when an operand has no place in the arena (a bug).
[[nodiscard]] bool add_programs(const ir::Module& module, const codegen::DeviceCode& code, Plan& plan,
                                std::string& problem);

}  // namespace gacc
