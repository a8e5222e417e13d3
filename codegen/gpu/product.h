// The built-in matrix products of the GPU (kernels/gemm.h) as code.
#pragma once
#include "kernels/gemm.h"
#include "kernels/program.h"

namespace llvm {
class Module;
class Function;
}  // namespace llvm

namespace gacc::codegen {

using namespace kernels;

// Emits the kernel into `module`. Parameters, 8 bytes each: a, b, c, m, n, k (runtime/plan.h, PlanBuiltin);
// with an epilogue, whose function is `then`: its operands, a, b, c, its extents, m, n, k.
llvm::Function* emit_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                          const Body* then = nullptr);

}  // namespace gacc::codegen
