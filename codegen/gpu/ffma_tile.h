// A block's tile of C by fused multiply-adds, of operands that come from anywhere.
//
//   for every tile of the inner dimension, and once more:
//     global -> registers, of this tile                           in flight while ...
//     products of the tile before, from its buffer in shared memory   ... these are computed
//     registers -> the other buffer; barrier
//   of a tile in slices: a thread has its part of each tile's inner dimension; the sums meet in shared memory,
//     where slice s adds the s-th element of each thread, slice after slice
//
// In shared memory both operands lie with the inner dimension first, so a thread reads its micro_m elements
// of A and micro_n of B side by side. An operand whose inner dimension is the contiguous one in memory is
// turned on the way in.
#pragma once
#include "codegen/gpu/block_code.h"
#include "kernels/gemm.h"

namespace gacc::codegen {

class FfmaTile : BlockCode {
 public:
  static constexpr int kVector = 4;  // elements of an access: 16 bytes, of half types 8

  // The staging of one operand in shared memory. A thread moves `moves` vectors a tile; vector v lies outer_step * v
  // and inner_step * v after its first one.
  struct Staging {
    bool inner_last = false;  // the inner dimension is the contiguous one
    bool whole = false;       // all elements of a vector exist, or none does
    int moves = 0, row = 0;   // vectors a thread; words from a row in shared memory to the next
    int outer_step = 0, inner_step = 0;
    Value *outer = nullptr, *inner = nullptr;  // the first vector's place in the tile
  };

  FfmaTile(Target& target, const GemmTile& tile, ir::DType type)
      : BlockCode(target), tile_(tile), type_(type) {}

  // Sets the thread's place in the tile, and the elements that it moves.
  void place(Value* thread, bool a_inner_last, bool b_inner_last, bool a_whole, bool b_whole);
  const Staging& left() const { return a_; }
  const Staging& right() const { return b_; }
  // Returns the condition that element j of vector v exists, in a tile that begins `left` before the end of the inner
  // dimension.
  Value* exists(const Staging& staging, int v, int j, Value* left) {
    return b.CreateICmpULT(
        b.CreateAdd(staging.inner, word(v * staging.inner_step + (staging.inner_last ? j : 0))), left);
  }

  // Fetches a thread's elements of the tile that begins at k0, `left` before the end: its vectors of A, then of B, as
  // they are in memory, and what else `exists` asks for.
  using Fetch = std::function<Values(Value* k0, Value* left)>;
  // Returns the condition that element j of vector v exists.
  using Exists =
      std::function<Value*(const Staging& staging, int v, int j, Value* left, const Values& fetched)>;
  // The thread's elements of the product, row by row.
  // `first`: what the sums start from, if not zero.
  Values products(Value* depth, const Fetch& fetch, const Exists& exists, const Values& first = {});

  int rows() const { return slice_ ? 1 : tile_.micro_m * tile_.groups; }
  int columns() const { return slice_ ? 1 : run() * tile_.groups; }
  int runs() const { return tile_.groups; }
  int run() const { return slice_ ? 1 : tile_.micro_n; }  // neighbouring elements of a row
  // Returns the index among the sums of element i of row r's group g.
  size_t sum(int r, int g, int i) const { return static_cast<size_t>(r * columns() + g * run() + i); }
  // Row r, and element i of group g, of the thread's elements, in a C whose tile begins at `first`.
  Value* row(Value* first, int r) {
    const int at = r / tile_.micro_m * (tile_.m / tile_.groups) + r % tile_.micro_m;
    return b.CreateAdd(b.CreateAdd(first, slice_ ? own_row_ : row_), word(at));
  }
  Value* column(Value* first, int g, int i) {
    Value* own = slice_ ? own_column_ : column_;
    return b.CreateAdd(b.CreateAdd(first, own), word(g * (tile_.n / tile_.groups) + i));
  }

 private:
  int sums() const { return tile_.micro_m * tile_.micro_n * tile_.groups * tile_.groups; }  // of a thread
  int buffer_words() const { return tile_.k * (a_.row + b_.row); }
  Value* beyond(Value* from, int words) {
    return b.CreateConstInBoundsGEP1_32(b.getFloatTy(), from, static_cast<unsigned>(words));
  }
  Value* shared(Value* index) { return b.CreateInBoundsGEP(b.getFloatTy(), shared_, index); }

  Staging staging(Value* thread, bool inner_last, bool whole, int width);
  void deposit(const Staging& staging, Value* at, const std::function<Value*(int v)>& vector);
  Values multiply(Value* buffer, Value* depth, const Values& sums);
  Values fragment(Value* from, int row, int width, int extent);
  Values add_slices(const Values& sums);

  const GemmTile& tile_;
  const ir::DType type_;                      // of A and B
  Value *row_ = nullptr, *column_ = nullptr;  // the thread's first ones, in the tile
  // With several slices: the slice's number, the thread's in it, and the element that it stores.
  Value *slice_ = nullptr, *inside_ = nullptr, *own_row_ = nullptr, *own_column_ = nullptr;
  Staging a_{}, b_{};
  llvm::GlobalVariable* shared_ = nullptr;
};

}  // namespace gacc::codegen
