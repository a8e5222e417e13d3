#include "codegen/host/products.h"

#include <algorithm>

#include "codegen/host/native_product.h"
#include "codegen/host/ordered_product.h"
#include "codegen/host/primitive.h"
#include "ir/module.h"

namespace gacc::host {

namespace {

// Measured with oneDNN 2.6 on the shapes of the MNIST MLP (AVX-512): a tile of 2-3 MFLOP (20 us) keeps 95 %
// of the untiled rate if it is at least 64 x 128, or all of fewer rows. A product of 1-2 MFLOP gains from one
// cut even so. Large products get larger tiles, 64-128 in all, which is balanced enough for some 16 threads.
constexpr int64_t kTileFlops = int64_t{5} << 19, kOneCutFlops = int64_t{1} << 20, kMostTiles = 64;
constexpr int64_t kMinRows = 64, kMinColumns = 128, kColumnStep = 16;

// For half types: floats of a thread's blocks of A and B, and the most that a tile's sides may add up
// to, so that a block is at least 256 deep. The tile of C then has at most kMostTileSides^2 / 4 elements.
constexpr int64_t kBlockFloats = int64_t{128} << 10, kMostTileSides = 512, kDepthStep = 16;
static_assert(4 * (kBlockFloats + kMostTileSides * kMostTileSides / 4) == Gemm::kScratchBytes);

// Products of f32 with a turned B run in order (has_wide_tiles) from these sizes on, 1.1 to 1.9 times as quickly as in
// oneDNN 2.6 with AVX-512. Fewer rows fill no vector, one column neither, and for fewer terms turning does not pay.
// What is turned serves as many rows as its tile has, so tiles of more than kFewRows are tall.
constexpr int64_t kLeastRows = 16, kLeastColumns = 4, kLeastTerms = 256;
constexpr int64_t kFewRows = 64, kTallRows = 128, kTallColumns = 48;

// Products in order: samples of at least kLeastRowsToSum rows are summed first, kRun rows at a time; a packed factor
// has at most kMostTerms terms at once.
constexpr int64_t kLeastRowsToSum = 16, kRun = 128, kMostTerms = 1024;

// [rows, columns] from element `first` on, whose rows lie `step` elements apart, as f32: the matrix itself, or of a
// half type a copy without gaps, in `copy`.
HostMatrix as_f32(DType type, const void* from, int64_t first, int64_t rows, int64_t columns, int64_t step,
                  float* copy) {
  if (type == DType::f32) return {static_cast<const float*>(from) + first, step};
  for (int64_t row = 0; row < rows; ++row)
    widen(half_type(type), static_cast<const uint16_t*>(from) + first + row * step, copy + row * columns,
          columns);
  return {copy, columns};
}

// The reverse of a half type: rounds a matrix without gaps.
void round_rows(DType type, const float* from, int64_t rows, int64_t columns, void* to, int64_t first,
                int64_t step) {
  for (int64_t row = 0; row < rows; ++row)
    narrow(half_type(type), from + row * columns, static_cast<uint16_t*>(to) + first + row * step, columns);
}

// One product on the calling thread: c[m, n] (+)= a[m, k] @ b[k, n]; rows of c lie `step` elements apart. False when
// oneDNN refuses.
[[nodiscard]] bool multiply(const ProductSize& size, const HostMatrix& a, const HostMatrix& b, float* c,
                            int64_t step, bool accumulate) {
  forbid_nested_threads();
  return dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size.m, size.n, size.k, 1.0f, a.data,
                    a.step, b.data, b.step, accumulate ? 1.0f : 0.0f, c, step) == dnnl_success;
}

}  // namespace

void Gemm::prepare(int threads) {
  if (native != nullptr) cut();  // its tiles are not those of conversions
  native.reset();
  if (!in_order && type == DType::bf16 && multiplies_bf16())
    native = NativeProduct::make(*this, has_amx(), threads);
}

void Gemm::cut(int64_t long_tile) {
  tile_m = std::max<int64_t>(m, 1);
  tile_n = std::max<int64_t>(n, 1);
  const bool native_type = type == DType::bf16 && multiplies_bf16();
  in_order = ordered || (by_rows && m > 1 && n > 1 && !native_type) ||
             (type == DType::f32 && transpose_b && m >= kLeastRows && n >= kLeastColumns &&
              k >= kLeastTerms && has_wide_tiles());
  const bool tall = in_order && transpose_b && m > kFewRows;
  if (tall) tile_n = std::min(tile_n, kTallColumns);
  // Halve the longer side while the tile stays worth a thread's while. Bounds on the sides keep the packing
  // of the operands, which every tile repeats, small beside the arithmetic.
  const auto flops = [&] { return 2 * tile_m * tile_n * std::max<int64_t>(k, 1); };
  const int64_t enough = std::max(kTileFlops, flops() / kMostTiles);
  const auto halve = [&](bool rows) {
    if (rows)
      tile_m = (tile_m + 1) / 2;
    else
      tile_n = ir::aligned((tile_n + 1) / 2, kColumnStep);
  };
  for (bool first = true;; first = false) {
    if (flops() <= (first ? kOneCutFlops : enough)) break;
    const bool rows = tile_m / 2 >= (tall ? kTallRows : kMinRows);
    bool columns = tile_n / 2 >= (first ? kMinColumns / 2 : kMinColumns);
    if (long_tile > 0 && tile_m < m) columns = columns && !rows && flops() > long_tile;
    if (!rows && !columns) break;
    halve(rows && (!columns || long_tile > 0 || 2 * tile_m >= tile_n));
  }
  while (long_tile == 0 && needs_scratch() && tile_m + tile_n > kMostTileSides) halve(tile_m > tile_n);
}

bool Gemm::sums_runs() const { return ordered && accumulate && rows_of_sample >= kLeastRowsToSum; }

Runs Gemm::runs(int64_t first) const {
  return sums_runs() ? Runs{rows_of_sample, kRun, first % rows_of_sample} : Runs{kMostTerms, kMostTerms, 0};
}

int64_t Gemm::block_end(int64_t begin, int64_t depth) const {
  if (in_order) depth = std::min(depth, kMostTerms);
  if (!sums_runs()) return std::min(begin + depth, k);
  const Runs of = runs(begin);
  int64_t here = of.length(0);
  while (begin + here < k && here + of.length(here) <= depth) here += of.length(here);
  return std::min(begin + here, k);
}

bool Gemm::run(const void* a, const void* b, void* c, int64_t task, const ProductThread& thread) const {
  const int64_t across = ceil_divide(n, tile_n);
  const int64_t i = task / across * tile_m, rows = std::min(tile_m, m - i);
  const int64_t j = task % across * tile_n, columns = std::min(tile_n, n - j), c_first = i * c_row() + j;
  if (native != nullptr) return native->run(*this, a, b, c, i, rows, j, columns, thread);
  // Sums go to C, or beside it where they are to be rounded.
  const bool rounds = result != DType::f32;
  float* sums = rounds ? thread.scratch + kBlockFloats : static_cast<float*>(c) + c_first;
  int64_t depth = k;  // of a block
  float *copy_a = thread.scratch, *copy_b = nullptr;
  if (type != DType::f32) {
    const int64_t most = kBlockFloats / (tile_m + tile_n) / kDepthStep * kDepthStep;
    const int64_t count = ceil_divide(k, most);
    depth = ir::aligned(ceil_divide(k, count), kDepthStep);
    copy_b = copy_a + tile_m * depth;
  }
  for (int64_t p = 0; p < k; p = block_end(p, depth)) {
    const int64_t here = block_end(p, depth) - p;
    HostMatrix block_a = transpose_a ? as_f32(type, a, p * a_row() + i, here, rows, a_row(), copy_a)
                                     : as_f32(type, a, i * a_row() + p, rows, here, a_row(), copy_a);
    HostMatrix block_b = transpose_b ? as_f32(type, b, j * b_row() + p, columns, here, b_row(), copy_b)
                                     : as_f32(type, b, p * b_row() + j, here, columns, b_row(), copy_b);
    block_a.transposed = transpose_a, block_b.transposed = transpose_b;
    const int64_t step = rounds ? columns : c_row();
    if (in_order)
      multiply_in_order({rows, columns, here}, block_a, block_b, sums, step,
                        sums_runs()           ? Start::apart
                        : accumulate || p > 0 ? Start::element
                                              : Start::zero,
                        runs(p));
    else if (!multiply({rows, columns, here}, block_a, block_b, sums, step, accumulate || p > 0))
      return false;
  }
  if (rounds) round_rows(result, sums, rows, columns, c, c_first, c_row());
  return true;
}

}  // namespace gacc::host
