// PTX of a fused or planned module: one text that ptxas accepts for the target it names.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/emit/gemm.h"
#include "codegen/emit/program.h"
#include "codegen/epilogues.h"
#include "ir/diag.h"
#include "runtime/plan.h"

namespace gacc::codegen {

struct DeviceCode {
  Program program;  // calls with operands, extents, items, block, per_block
  // PTX entry of each function. Its parameters, 8 bytes each: operands, then extents.
  std::vector<std::string> entries;
  // Of a planned module, by ir::RegionKind: what built-in products do of the kernels behind them.
  std::array<std::vector<Epilogue>, 4> epilogues;
  std::vector<GemmKernel> products;   // built-in kernels of the matrix products; entries under their names
  std::vector<PlanProgram> programs;  // of a planned module: the launches, merged (codegen/merge.h)
  std::string ptx;
  std::string llvm_ir;  // what the PTX was made of, after the passes
};

// Targets that the LLVM in use knows: "sm_75" ... "sm_90a".
std::vector<std::string_view> known_targets();
// Checks a target's name; an unknown one is reported to `diag` with the known ones.
[[nodiscard]] bool check_target(std::string_view target, Diag& diag);
std::optional<DeviceCode> emit_nvptx(const ir::Module& module, std::string_view target, Diag& diag);

}  // namespace gacc::codegen
