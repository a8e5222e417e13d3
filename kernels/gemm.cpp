// Chooses the built-in kernel of a product. No LLVM here: the plan writer asks as well.
#include <fmt/format.h>

#include <cstdlib>
#include <span>

#include "ir/product.h"
#include "kernels/gemm.h"

namespace gacc::kernels {

namespace {

// From the most arithmetic a loaded byte to the most blocks. The smallest tile is for products too small to
// fill a GPU: those wait for memory, not for arithmetic, so it fetches much of the inner dimension at once.
constexpr GemmTile kTiles[] = {
    {128, 128, 8, 4, 4, 2}, {64, 64, 16, 4, 4, 1}, {32, 32, 32, 2, 4, 1}, {16, 16, 64, 2, 2, 1}};

// The same for tensor cores. Stages fill what a block may have of shared memory without asking, 48 KiB.
constexpr GemmTile kMmaTiles[] = {{.m = 128, .n = 128, .k = 32, .warps_m = 2, .warps_n = 4, .stages = 3},
                                  {.m = 64, .n = 64, .k = 32, .warps_m = 2, .warps_n = 2, .stages = 4},
                                  {.m = 32, .n = 32, .k = 64, .warps_m = 2, .warps_n = 2, .stages = 4}};

// The smallest tiles in slices, with twice the inner dimension at a time.
constexpr GemmTile kMmaSliced = {
    .m = 32, .n = 32, .k = 128, .warps_m = 2, .warps_n = 2, .stages = 3, .slices = 2};
constexpr GemmTile kSliced = {
    .m = 16, .n = 16, .k = 128, .micro_m = 2, .micro_n = 2, .groups = 1, .slices = 4};

// Tiles of implicit products. First by tensor cores: the largest only for operands that are copied, since a thread has
// no registers for more than its sums; then without.
constexpr GemmTile kImplicitTiles[] = {
    kMmaTiles[0], {.m = 128, .n = 64, .k = 32, .warps_m = 4, .warps_n = 2, .stages = 4},
    kMmaTiles[1], {.m = 32, .n = 64, .k = 32, .warps_m = 1, .warps_n = 4, .stages = 4},
    kMmaTiles[2], kTiles[0],
    kTiles[1],    kTiles[2],
    kTiles[3]};

}  // namespace

std::string GemmKernel::name() const {
  const std::string to = result == type ? "" : fmt::format("_{}", ir::dtype_text(result));
  const std::string then = epilogue ? (epilogue->keeps ? "_c_" : "_") + epilogue->name : "";
  return fmt::format("gacc_gemm_{}{}_{}{}{}_{}x{}{}{}{}", ir::dtype_text(type), to, transpose_a ? 't' : 'n',
                     transpose_b ? 't' : 'n',
                     ordered      ? "_ordered"
                     : accumulate ? "_acc"
                                  : "",
                     tile->m, tile->n, tile->slices > 1 ? "_sliced" : "", pitch ? "_pitch" : "", then);
}

int64_t tile_shared_bytes(const GemmTile& tile, const GpuTarget& gpu) {
  if (!tile.mma()) return int64_t{2} * tile.k * (tile.m + tile.n + 2 * GemmTile::kPad) * 4;
  return int64_t{2} * tile.stages_with(gpu.async_copies) * tile.k * (tile.m + tile.n);
}

bool has_tensor_cores(ir::DType type, const GpuTarget& gpu) {
  return type == ir::DType::f16 ? gpu.f16_products : type == ir::DType::bf16 && gpu.bf16;
}

const GemmTile& implicit_tile(int64_t number) { return kImplicitTiles[number]; }

int64_t choose_implicit(int64_t m, int64_t n, int64_t count, bool mma, bool copied) {
  const auto tiles = [&](const GemmTile& tile) { return ceil_divide(m, tile.m) * ceil_divide(n, tile.n); };
  const int64_t least = ceil_divide(m, 32) * ceil_divide(n, 32) * 32 * 32;  // elements of C in small tiles
  int64_t chosen = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(std::size(kImplicitTiles)); ++i) {
    const GemmTile& tile = kImplicitTiles[i];
    if (i == 0 && !copied) continue;
    if (tile.mma() != mma || 3 * tiles(tile) * tile.m * tile.n > 4 * least) continue;
    chosen = i;
    if (tiles(tile) * count >= kBlocksThatFillGpu) break;
  }
  return chosen;
}

GemmKernel choose_gemm(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, bool accumulate,
                       ir::DType type, ir::DType result, const GpuTarget& gpu, bool keeps_bits) {
  GemmKernel kernel{nullptr, transpose_a, transpose_b, accumulate, type, result};
  kernel.ordered = keeps_bits && accumulate;
  const bool mma = !kernel.ordered && has_tensor_cores(type, gpu);
  for (const GemmTile& tile :
       mma ? std::span<const GemmTile>(kMmaTiles) : std::span<const GemmTile>(kTiles)) {
    kernel.tile = &tile;
    if (ceil_divide(m, tile.m) * ceil_divide(n, tile.n) >= kBlocksThatFillGpu) return kernel;
  }
  if (k >= kDepthWorthSlices && !keeps_bits) kernel.tile = mma ? &kMmaSliced : &kSliced;
  return kernel;
}

GemmKernel choose_gemm(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel,
                       const GpuTarget& gpu) {
  const ir::Op& op = region.ops[kernel.members.front().op];
  const ir::OpView view{module, region, op};
  const ir::ProductCall product = ir::product_of(module, region, op);
  const int64_t batch = module.micro_batch();
  const int64_t m = product.m.at(batch), n = product.n.at(batch), k = product.k.at(batch);
  for (const int64_t extent : {m, k, n}) {
    if (extent > ir::kMostMatrixExtent)
      throw Unfit(fmt::format("`{}`: an extent of {} is too large for a built-in matrix product (at most {})",
                              op.info->name, extent, ir::kMostMatrixExtent));
  }
  const ir::DType type = operand_type(module, region, product.a).dtype;
  const ir::DType result = operand_type(module, region, product.c).dtype;
  const bool accumulate = op.info->accumulates;
  if (accumulate && result != ir::DType::f32)
    throw Unfit(fmt::format("`{}`: sums are f32, its buffer is {}", op.info->name, ir::dtype_text(result)));
  GemmKernel chosen = choose_gemm(m, n, k, view.flag("ta"), view.flag("tb"), accumulate, type, result, gpu,
                                  ir::keeps_bits(module.settings));
  chosen.pitch = product.pitch.has_value();
  return chosen;
}

}  // namespace gacc::kernels
