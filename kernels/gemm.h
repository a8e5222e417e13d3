// The built-in matrix products of the GPU: C[m, n] (+)= op(A)[m, k] @ op(B)[k, n], row-major, for machines with
// nothing but the driver. A and B are of one type; sums are f32; C is rounded once, or f32 and added to. Every
// product of a module gets a kernel of the artifact's PTX. Which one is a pure function of the product's shape,
// so the code and the plan agree without being told.
//
// A kernel is a tile shape and a variant. A block computes one tile of C and adds the inner dimension in
// order, or in slices that are each in order, with fused multiply-adds or with tensor cores: an element's bits
// depend on nothing but its row of A, its column of B, what C held, and the tile. With an epilogue (pass
// `epilogues`) each element of C goes from its thread's registers through a pointwise function.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/program.h"

namespace gacc::kernels {

// A block's tile of C is m x n, and it walks the inner dimension k at a time.
// By fused multiply-adds (f32): a thread owns `groups` x `groups` rectangles of micro_m x micro_n
// neighbouring elements. By tensor cores (f16, bf16): warps_m x warps_n warps share the tile, and `stages`
// tiles of A and B are on their way or in use at once.
// `slices` such groups of threads share the inner dimension of each tile: slice s adds the s-th part of every
// tile, in order, and the sums of the slices are added in order at the end.
struct GemmTile {
  int m, n, k, micro_m = 0, micro_n = 0, groups = 0, warps_m = 0, warps_n = 0, stages = 0, slices = 1;
  // After a row in shared memory, without tensor cores: fewer bank conflicts, still 16-byte aligned.
  static constexpr int kPad = 4;
  bool mma() const { return warps_m > 0; }
  // Without asynchronous copies two stages are enough.
  int stages_with(bool async_copies) const { return async_copies ? stages : 2; }
  int threads() const {
    return slices * (mma() ? 32 * warps_m * warps_n : m * n / (micro_m * micro_n * groups * groups));
  }
};

// Bytes of shared memory of a block.
int64_t tile_shared_bytes(const GemmTile& tile, const GpuTarget& gpu);

// Blocks of a launch that occupy three in four multiprocessors of an H200. A tile is worth its size when at least
// so many are left.
inline constexpr int64_t kBlocksThatFillGpu = 99;

// The inner extent from which on the threads of a block share its walk in slices, where fewer blocks than that are left
// whatever the tile: a block then lasts as long as its walk.
inline constexpr int64_t kDepthWorthSlices = 128;

// Returns true if products of this type go through tensor cores.
bool has_tensor_cores(ir::DType type, const GpuTarget& gpu);

// The tiles of implicit products (convolutions), by number; and the one for `count` products side by side of
// this shape in a full micro-batch: the largest that fills a GPU, of those that are not much emptier than the
// smallest. `copied`: both operands get into shared memory 16 bytes at a time.
const GemmTile& implicit_tile(int64_t number);
int64_t choose_implicit(int64_t m, int64_t n, int64_t count, bool mma, bool copied);

// The rest of a product, done with C while it is in registers: all of a pointwise function of the program, one of whose
// operands is C, rounded to its type.
struct GemmEpilogue {
  int32_t function = 0;  // in ModuleKernels::functions ...
  std::string name{};    // ... and its name there
  int32_t slot = 0;      // which of its slots is C
  bool keeps = false;    // C is needed elsewhere and stored, too
  bool operator==(const GemmEpilogue&) const = default;
};

struct GemmKernel {
  const GemmTile* tile = nullptr;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  ir::DType type = ir::DType::f32, result = ir::DType::f32;  // of A and B, and of C; accumulate: C is f32
  std::optional<GemmEpilogue> epilogue{};                    // not with accumulate
  // accumulate: every element of C goes on with its terms, one after the other, and not by tensor cores, which take
  // several at once.
  bool ordered = false;
  bool pitch = false;  // rows of A, B or C have gaps: it takes ProductCall::pitch, too
  bool operator==(const GemmKernel&) const = default;
  // The PTX entry: "gacc_gemm_f32_nt_acc_64x64", "..._ordered_..."; "gacc_gemm_f16_f32_nt_..."; "..._64x64_add_relu_3",
  // "..._64x64_c_add_relu_3" where C is stored, too, "..._16x16_sliced", and "..._64x64_pitch".
  std::string name() const;
};

// The kernel of a product that has this shape in a full micro-batch, by tensor cores where the GPU has them for its
// type. keeps_bits: no bit of an element depends on m, nor, where it accumulates, on k.
GemmKernel choose_gemm(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, bool accumulate,
                       ir::DType type = ir::DType::f32, ir::DType result = ir::DType::f32,
                       const GpuTarget& gpu = GpuTarget(80), bool keeps_bits = false);
// The same for a kernel of form gemm; Unfit is one with an extent beyond the kernels' 32-bit coordinates.
GemmKernel choose_gemm(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel,
                       const GpuTarget& gpu);

}  // namespace gacc::kernels
