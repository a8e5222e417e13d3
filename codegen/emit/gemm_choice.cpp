// Which built-in kernel computes a product. No LLVM here: the plan writer asks as well.
#include <fmt/format.h>

#include "codegen/emit/gemm.h"

namespace gacc::codegen {

namespace {

// From the most arithmetic a loaded byte to the most blocks. The smallest tile is for products too small to
// fill a GPU: those wait for memory, not for arithmetic, so it fetches much of the inner dimension at once.
constexpr GemmTile kTiles[] = {
    {128, 128, 8, 4, 4, 2}, {64, 64, 16, 4, 4, 1}, {32, 32, 32, 2, 4, 1}, {16, 16, 64, 2, 2, 1}};

// A tile is worth its size when at least so many blocks are left: three in four multiprocessors of an H200.
constexpr int64_t kEnoughBlocks = 99;

// Byte offsets inside a row are 32 bits wide, and so are coordinates, which run past the edge by a tile.
constexpr int64_t kMostExtent = (int64_t{1} << 30) - 256;

int64_t ceil_divide(int64_t value, int64_t by) { return (value + by - 1) / by; }

struct Extents {
  int64_t rows, columns;
};
Extents extents(const ir::Shape& shape, int64_t batch) {
  const int64_t columns = shape.empty() ? 1 : ir::elements({shape.back()}, batch);
  return {ir::elements(shape, batch) / columns, columns};
}

}  // namespace

std::string GemmKernel::name() const {
  return fmt::format("gacc_gemm_f32_{}{}{}_{}x{}", transpose_a ? 't' : 'n', transpose_b ? 't' : 'n',
                     accumulate ? "_acc" : "", tile->m, tile->n);
}

GemmKernel choose_gemm(int64_t m, int64_t n, bool transpose_a, bool transpose_b, bool accumulate) {
  GemmKernel kernel{nullptr, transpose_a, transpose_b, accumulate};
  for (const GemmTile& tile : kTiles) {
    kernel.tile = &tile;
    if (ceil_divide(m, tile.m) * ceil_divide(n, tile.n) >= kEnoughBlocks) break;
  }
  return kernel;
}

std::optional<GemmKernel> choose_gemm(const ir::Module& module, const ir::Region& region,
                                      const ir::Kernel& kernel, std::string& problem) {
  const ir::Op& op = region.ops[kernel.members.front().op];
  const ir::OpView view{module, region, op};
  const bool accumulate = (op.info->writes & 1U) != 0;  // then C is the first operand
  const auto matrix = [&](size_t operand) {
    return extents(ir::operand_type(module, region, op.operands[operand]).shape, module.micro_batch());
  };
  const Extents a = matrix(accumulate ? 1 : 0), b = matrix(accumulate ? 2 : 1);
  const bool ta = view.flag("ta"), tb = view.flag("tb");
  for (const int64_t extent : {a.rows, a.columns, b.rows, b.columns}) {
    if (extent <= kMostExtent) continue;
    problem = fmt::format("`{}`: an extent of {} is too large for a built-in matrix product (at most {})",
                          op.info->name, extent, kMostExtent);
    return std::nullopt;
  }
  return choose_gemm(ta ? a.columns : a.rows, tb ? b.rows : b.columns, ta, tb, accumulate);
}

}  // namespace gacc::codegen
