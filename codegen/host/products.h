// Matrix products of the host device: through oneDNN, or those of ordered_product.h.
//
// A product is cut into output tiles by its shape alone and every tile is computed by one thread from start
// to end, so its bits depend neither on the number of threads nor on who runs what. The inner dimension is
// not cut, unless operands are of half type: those are converted to f32 in blocks (of a depth that follows
// from the shape), the products of each block are added to f32 sums, and a half result is rounded once.
// A CPU that multiplies bf16 itself (AVX512-BF16, AMX) needs no conversion: sums are f32 all the same, and a
// bf16 result is rounded once.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "ir/types.h"
#include "runtime/half.h"

namespace gacc::host {

using ir::DType;
inline HalfType half_type(DType type) { return type == DType::f16 ? HalfType::f16 : HalfType::bf16; }

// The state of one thread that runs products.
struct ProductThread {
  int number = 0;            // below the number of threads that `prepare` was told
  float* scratch = nullptr;  // Gemm::kScratchBytes, where Gemm::needs_scratch
};

struct Runs;
class NativeProduct;

// C[m, n] (+)= op(A)[m, k] @ op(B)[k, n]: row-major; op transposes where the flag says so.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType type = DType::f32, result = DType::f32;  // of A and B, and of C: f32 or half; accumulate: C is f32
  // Every element's terms in order (ordered_product.h): no bit depends on m, nor, where `accumulate`, on which of the
  // rows of k come in one product. `rows_of_sample`, where k are rows of samples: of many, c adds the sums of runs.
  bool ordered = false;
  int64_t rows_of_sample = 1;
  // No bit of a row of C depends on how many rows there are, as a library's do: products in order, but for half types
  // on a CPU that multiplies those itself.
  bool by_rows = false;
  // Elements from one row of A, B and C to the next; 0: rows without gaps.
  std::array<int64_t, 3> pitch{};
  int64_t tile_m = 0, tile_n = 0;  // set by cut
  bool in_order = false;           // set by cut, where `ordered` or where that is quicker than the library
  std::shared_ptr<const NativeProduct>
      native{};  // set by prepare, where the CPU multiplies bf16 (native_product.h)

  // Bytes of the thread's own memory that `run` uses where a type is not f32.
  static constexpr int64_t kScratchBytes = 768 << 10;
  bool needs_scratch() const { return type != DType::f32 || result != DType::f32; }

  // Chooses the tiles for a product of up to this size (m and k may shrink later, at a ragged micro-batch). With
  // `long_tile` they are whole rows of C while there are rows to cut, and those not longer than so many operations.
  void cut(int64_t long_tile = 0);
  // Makes ready what `run` needs on so many threads, for these m and k, and may cut anew: after `cut`, and
  // whenever they change.
  void prepare(int threads = 1);
  int64_t a_row() const { return pitch[0] != 0 ? pitch[0] : transpose_a ? m : k; }
  int64_t b_row() const { return pitch[1] != 0 ? pitch[1] : transpose_b ? k : n; }
  int64_t c_row() const { return pitch[2] != 0 ? pitch[2] : n; }
  int64_t tasks() const { return ceil_divide(m, tile_m) * ceil_divide(n, tile_n); }
  // Computes tile `task`. False when oneDNN refuses (out of memory for its packing buffers).
  // Allocates inside oneDNN, which packs operands into buffers of its own in every call, and once a thread where
  // `in_order`.
  [[nodiscard]] bool run(const void* a, const void* b, void* c, int64_t task,
                         const ProductThread& thread = {}) const;

 private:
  bool sums_runs() const;
  Runs runs(int64_t first) const;  // of a block that begins with this term
  // The end of a block of at most `depth` terms that begins here; runs are whole.
  int64_t block_end(int64_t begin, int64_t depth) const;
};

// A matrix of f32 whose rows lie `step` elements apart.
struct HostMatrix {
  const float* data;
  int64_t step;
  bool transposed = false;  // as a factor
};

struct ProductSize {
  int64_t m = 0, n = 0, k = 0;
};

// Copies rows of `columns` elements, which lie so many elements apart.
template <class T>
void copy_rows(const T* from, int64_t from_step, int64_t rows, int64_t columns, T* to, int64_t to_step) {
  for (int64_t row = 0; row < rows; ++row) std::copy_n(from + row * from_step, columns, to + row * to_step);
}

}  // namespace gacc::host
