// PTX of a module: one text that ptxas accepts for the target it names.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/diag.h"
#include "kernels/gemm.h"
#include "kernels/program.h"
#include "runtime/plan.h"

namespace gacc::codegen {

using namespace kernels;

struct DeviceCode {
  // Its functions are entries of their names. Their parameters, 8 bytes each: operands, then extents.
  ModuleKernels program;
  std::vector<GemmKernel> products;   // built-in kernels of the matrix products; entries under their names
  std::vector<PlanProgram> programs;  // of a scheduled module
  std::string ptx;
  std::string llvm_ir;  // what the PTX was made of, after the passes; empty unless it is asked for
};

// Targets that the LLVM in use knows: "sm_75" ... "sm_90a".
std::vector<std::string_view> known_targets();
// Checks a target's name; an unknown one is reported to `diag` with the known ones.
[[nodiscard]] bool check_target(std::string_view target, Diag& diag);
// The code of a scheduled module, which is for `target`: what its launches name and nothing else. Of a module
// in an earlier phase from `fused` on: every kernel alone.
std::optional<DeviceCode> emit_nvptx(const ir::Module& module, std::string_view target, Diag& diag,
                                     bool shows_llvm_ir = false);

}  // namespace gacc::codegen
