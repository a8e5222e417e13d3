// Products of bf16 on a CPU that multiplies it itself (AVX512-BF16, AMX), in oneDNN. The library has its quickest
// kernels, and all that use AMX, for matrices without gaps alone. So a tile is whole rows of C where C has rows enough;
// and with AMX what a tile takes of a matrix with gaps is copied into the thread's memory.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "codegen/host/primitive.h"
#include "codegen/host/products.h"

namespace gacc::host {

class NativeProduct {
 public:
  // Chooses gemm's tiles, by its shape alone, and makes their primitives for so many threads. `copies`: of
  // matrices with gaps, unless they take more than Gemm::kScratchBytes. Null where the library has nothing
  // better than loops, or wants more than that: gemm is as it was then.
  static std::shared_ptr<const NativeProduct> make(Gemm& gemm, bool copies, int threads);

  // Computes a tile of C: `rows` from i on, `columns` from j on.
  [[nodiscard]] bool run(const Gemm& gemm, const void* a, const void* b, void* c, int64_t i, int64_t rows,
                         int64_t j, int64_t columns, const ProductThread& thread) const;

 private:
  // A product of terms of a tile. `adds`: to what C has.
  struct Part {
    int64_t rows, columns, terms;
    bool adds;
    Primitive product;
  };
  const Part* find(int64_t rows, int64_t columns, int64_t terms, bool adds) const;  // null: there is none
  bool add_parts(const Gemm& gemm, bool copies, int threads);
  bool add_part(const Gemm& gemm, int64_t rows, int64_t columns, int64_t terms, bool adds, int threads);

  std::vector<Part> parts_;
  bool copies_a_ = false, copies_b_ = false, copies_c_ = false;
  int64_t most_terms_ = 0;                                 // of a part
  int64_t b_place_ = 0, c_place_ = 0, library_place_ = 0;  // in the thread's memory, behind the copy of A
};

}  // namespace gacc::host
