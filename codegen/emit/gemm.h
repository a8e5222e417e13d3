// The built-in matrix products of the GPU: C[m, n] (+)= op(A)[m, k] @ op(B)[k, n], row-major f32, for
// machines with nothing but the driver. Every product of a module gets a kernel of the artifact's PTX; which
// one is a pure function of the product's shape, so the code and the plan agree without being told.
//
// A kernel is a tile shape and a variant. A block computes one tile of C, its threads a small rectangle each,
// and adds the inner dimension in order with fused multiply-adds: an element's bits depend on nothing but its
// row of A, its column of B and what C held.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ir/kernel.h"

namespace llvm {
class Module;
class Function;
}  // namespace llvm

namespace gacc::codegen {

// A block's tile of C is m x n, and it walks the inner dimension k at a time. A thread owns `groups` x
// `groups` rectangles of micro_m x micro_n neighbouring elements.
struct GemmTile {
  int m, n, k, micro_m, micro_n, groups;
  int threads() const { return m * n / (micro_m * micro_n * groups * groups); }
};

struct GemmKernel {
  const GemmTile* tile = nullptr;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  bool operator==(const GemmKernel&) const = default;
  std::string name() const;  // the PTX entry: "gacc_gemm_f32_nt_acc_64x64"
};

// The kernel of a product that has this shape in a full micro-batch.
GemmKernel choose_gemm(int64_t m, int64_t n, bool transpose_a, bool transpose_b, bool accumulate);
// The same for a kernel of form gemm; nothing and a sentence in `problem` when an extent is beyond the
// kernels' 32-bit coordinates.
std::optional<GemmKernel> choose_gemm(const ir::Module& module, const ir::Region& region,
                                      const ir::Kernel& kernel, std::string& problem);

// Emits the kernel into `module`. Parameters, 8 bytes each: a, b, c, m, n, k (runtime/plan.h, PlanBuiltin).
llvm::Function* emit_gemm(llvm::Module& module, const GemmKernel& kernel);

}  // namespace gacc::codegen
