// Matrix products of the host device, through oneDNN. gemm.cpp is the only file that includes it.
//
// A product is cut into output tiles by its shape alone and every tile is computed by one thread from start
// to end, so its bits depend neither on the number of threads nor on who runs what. The inner dimension is
// never cut.
#pragma once
#include <cstdint>

namespace gacc::host {

// C[m, n] (+)= op(A)[m, k] @ op(B)[k, n]: f32, row-major and dense; op transposes where the flag says so.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  int64_t tile_m = 0, tile_n = 0;  // set by cut

  // Chooses the tiles for a product of up to this size (m and k may shrink later, at a ragged micro-batch).
  void cut();
  int64_t tasks() const { return ((m + tile_m - 1) / tile_m) * ((n + tile_n - 1) / tile_n); }
  // Computes tile `task`. False when oneDNN refuses (out of memory for its packing buffers).
  // Allocates only inside oneDNN, which packs operands into buffers of its own in every call.
  bool run(const float* a, const float* b, float* c, int64_t task) const;
};

}  // namespace gacc::host
