// See gemm.h.
#include "codegen/host/gemm.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

namespace gacc::host {

namespace {

// oneDNN's own threading changes bits with the number of threads, so every thread that calls it asks OpenMP
// for one thread. The setting is per thread. Where oneDNN was built without OpenMP there is nothing to ask.
bool forbid_nested_threads() {
  using Setter = void (*)(int);
  static const Setter setter = [] {
    for (const char* name : {"libgomp.so.1", "libomp.so.5", "libiomp5.so"})
      if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD))
        if (void* symbol = dlsym(library, "omp_set_num_threads")) return reinterpret_cast<Setter>(symbol);
    return Setter{nullptr};
  }();
  if (setter != nullptr) setter(1);
  return true;
}

// Measured with oneDNN 2.6 on the shapes of the MNIST MLP (AVX-512): a tile of 2-3 MFLOP (20 us) keeps 95 %
// of the untiled rate if it is at least 64 x 128, or all of fewer rows. A product of 1-2 MFLOP gains from one
// cut even so. Large products get larger tiles, 64-128 in all, which is balanced enough for some 16 threads.
constexpr int64_t kTileFlops = int64_t{5} << 19, kOneCutFlops = int64_t{1} << 20, kTiles = 64;
constexpr int64_t kMinRows = 64, kMinColumns = 128, kColumnStep = 16;

}  // namespace

void Gemm::cut() {
  tile_m = std::max<int64_t>(m, 1);
  tile_n = std::max<int64_t>(n, 1);
  // Halve the longer side while the tile stays worth a thread's while. Bounds on the sides keep the packing
  // of the operands, which every tile repeats, small beside the arithmetic.
  const int64_t all = 2 * tile_m * tile_n * std::max<int64_t>(k, 1);
  const int64_t enough = std::max(kTileFlops, all / kTiles);
  for (bool first = true;; first = false) {
    if (2 * tile_m * tile_n * std::max<int64_t>(k, 1) <= (first ? kOneCutFlops : enough)) break;
    const bool rows = tile_m / 2 >= kMinRows, columns = tile_n / 2 >= (first ? kMinColumns / 2 : kMinColumns);
    if (!rows && !columns) break;
    if (rows && (!columns || 2 * tile_m >= tile_n)) {
      tile_m = (tile_m + 1) / 2;
    } else {
      tile_n = ((tile_n + 1) / 2 + kColumnStep - 1) / kColumnStep * kColumnStep;
    }
  }
}

bool Gemm::run(const float* a, const float* b, float* c, int64_t task) const {
  static thread_local const bool alone = forbid_nested_threads();
  (void)alone;
  const int64_t columns = (n + tile_n - 1) / tile_n;
  const int64_t i = task / columns * tile_m, j = task % columns * tile_n;
  const int64_t lda = transpose_a ? m : k, ldb = transpose_b ? k : n;
  return dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', std::min(tile_m, m - i),
                    std::min(tile_n, n - j), k, 1.0f, a + (transpose_a ? i : i * lda), lda,
                    b + (transpose_b ? j * ldb : j), ldb, accumulate ? 1.0f : 0.0f, c + i * n + j,
                    n) == dnnl_success;
}

}  // namespace gacc::host
