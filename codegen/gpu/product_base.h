// The common part of the emitters of matrix products: the kernel's function over Target, short names for its
// arithmetic, the ends of the block's collectives, and the addresses of elements of C.
#pragma once
#include <llvm/IR/Module.h>

#include "codegen/emit/evaluator.h"
#include "codegen/gpu/block_code.h"
#include "codegen/gpu/product.h"
#include "codegen/gpu/target.h"

namespace gacc::codegen {

class GemmBase : protected BlockCode {
 protected:
  GemmBase(Target& target, const GemmKernel& kernel)
      : BlockCode(target),
        kernel_(kernel),
        tile_(*kernel.tile),
        bytes_(static_cast<int>(ir::dtype_bytes(kernel.type))),
        c_bytes_(static_cast<int>(ir::dtype_bytes(kernel.result))),
        evaluator_(target) {}

  // The function's arguments, and where its block is in C: of the tile in `row0_`, `column0_`, the first element.
  void begin() {
    const size_t slots = t_.operands.size() - 3, extents = t_.constants.size() - (kernel_.pitch ? 6 : 3);
    c_address_ = t_.operands[slots + 2];
    m_ = t_.constants[extents], n_ = t_.constants[extents + 1], k_ = t_.constants[extents + 2];
    const auto row = [&](size_t which, Value* dense) {
      return kernel_.pitch ? t_.constants[extents + 3 + which] : dense;
    };
    c_row_ = row(2, n_);
    thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    Value* block = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
    Value* across = b.CreateUDiv(b.CreateAdd(n_, word(tile_.n - 1)), word(tile_.n));
    Value* down = b.CreateUDiv(block, across);
    row0_ = b.CreateMul(down, word(tile_.m));
    column0_ = b.CreateMul(b.CreateSub(block, b.CreateMul(down, across)), word(tile_.n));
    a_ = {t_.operands[slots], row(0, kernel_.transpose_a ? m_ : k_), m_, row0_};
    b_ = {t_.operands[slots + 1], row(1, kernel_.transpose_b ? k_ : n_), n_, column0_};
  }

  Value* in_bytes(Value* elements) { return b.CreateShl(elements, bytes_ == 2 ? 1 : 2); }
  // Returns the condition that an address and the step from row to row are multiples of `bytes`, a power of two.
  Value* multiple_of(int bytes, Value* address, Value* stride) {
    Value* low = b.CreateOr(b.CreatePtrToInt(address, b.getInt64Ty()), stride);
    return b.CreateICmpEQ(b.CreateAnd(low, b.getInt64(static_cast<uint64_t>(bytes - 1))), b.getInt64(0));
  }

  // Returns the begin of the last run of `count` elements; runs begin at multiples of that.
  Value* last_run(Value* extent, int count) {
    if (kernel_.pitch)
      extent = b.CreateAnd(b.CreateAdd(extent, word(count - 1)), word(-count));  // it may reach into the gap
    return b.CreateSub(extent, word(count));
  }

  // A, or B: its elements from one row to the next; along its outer dimension C's extent and the block's first place.
  struct Matrix {
    Value *address, *row, *extent, *origin;
  };
  // A thread's part of it: runs of neighbouring elements.
  struct Dense {
    bool inner_last = false;   // the inner dimension is the contiguous one
    int run = 0;               // elements
    Value* aligned = nullptr;  // i1, same for all threads: whole runs can be loaded
    Value* stride = nullptr;   // i64: bytes from one row in memory to the next
    Values begin{};            // inner_last: where the row of each run begins (one: of all); else the column
    // Else, i32: how many of a run's elements are before the edge, and of all behind its first one.
    Value *left = nullptr, *room = nullptr;
    Values to_element{};  // else: bytes to elements 0, 1, 2, ..., at most to the last before the edge
  };
  Dense dense(const Matrix& from, bool inner_last, int run) {
    Value* stride = wide(in_bytes(from.row));
    Value* aligned = multiple_of(run * bytes_, from.address, stride);
    return {.inner_last = inner_last, .run = run, .aligned = aligned, .stride = stride};
  }
  // Sets the addresses of its runs: the first is `place` << `shift` behind the block's first place. inner_last: `count`
  // runs are `apart` rows from each other.
  void reach(Dense& o, const Matrix& from, Value* place, int shift, int count, int apart) {
    Value* last = b.CreateSub(from.extent, word(1));
    Value* first = b.CreateAdd(from.origin, b.CreateShl(place, shift));
    if (o.inner_last) {
      for (int v = 0; v < (apart == 0 ? 1 : count); ++v)
        o.begin.push_back(
            offset(from.address, b.CreateMul(wide(min(add(first, v * apart), last)), o.stride)));
      return;
    }
    // If whole runs are read, rows begin at their multiples, and so does the last run.
    Value* column = min(first, b.CreateSelect(o.aligned, last_run(from.extent, o.run), last));
    o.begin.push_back(offset(from.address, wide(in_bytes(column))));
    Value* left = b.CreateSub(from.extent, column);
    o.left = b.CreateSelect(b.CreateICmpULT(column, from.extent), min(left, word(o.run)), word(0));
    o.room = b.CreateSub(last, column);
    for (int j = 0; j < o.run; ++j) o.to_element.push_back(wide(in_bytes(min(word(j), o.room))));
  }
  // Returns the address of element j of run v, which is at `place` along the inner dimension, or of one that exists.
  Value* address(const Dense& o, int v, int j, Value* place, Value* exists) {
    place = wide(b.CreateSelect(exists, place, word(0)));
    Value* begin = o.begin[o.begin.size() > 1 ? static_cast<size_t>(v) : 0];
    if (o.inner_last) return offset(begin, in_bytes(place));
    Value* row = offset(begin, b.CreateMul(place, o.stride));
    return j == 0 ? row : offset(row, o.to_element[j]);
  }

  // An element of C.
  Value* c_address(Value* row, Value* column) {
    Value* index = b.CreateAdd(b.CreateMul(wide(row), wide(c_row_)), wide(column));
    return b.CreateInBoundsGEP(stored(c_bytes_), c_address_, index);
  }
  // Runs of `count` elements of C can be moved at once.
  Value* c_aligned(int count) {
    return multiple_of(count * c_bytes_, c_address_, wide(b.CreateShl(c_row_, c_bytes_ == 2 ? 1 : 2)));
  }

  // `each` puts the thread's elements: `count` at a time where rows of C allow it (true), else one by one. A
  // function that moves several at a time in its own kernel has such rows, whatever the launch.
  void put_runs(int count, const std::function<void(bool whole)>& each) {
    if (count == 1 || (kernel_.epilogue && !t_.body.flat && t_.body.vector >= count)) return each(true);
    const auto one = [&](bool whole) { return each(whole), Values{}; };
    t_.either(
        c_aligned(count), [&] { return one(true); }, [&] { return one(false); });
  }
  // Rows [first, last) of the thread's sums, onto what C holds where `adds`.
  template <class Tile>
  void store_rows(Tile& tile, int first, int last, const Values& sums, bool adds) {
    put_runs(tile.run(), [&](bool whole) {
      const int count = whole ? tile.run() : 1;
      for (int r = first; r < last; ++r) {
        Value* row = tile.row(row0_, r);
        Value* row_exists = b.CreateICmpULT(row, m_);
        for (int g = 0; g < tile.runs(); ++g) {
          for (int i = 0; i < tile.run(); i += count) {
            Value* column = tile.column(column0_, g, i);
            Value* exists = b.CreateAnd(row_exists, b.CreateICmpULT(column, n_));
            t_.branch(exists, [&] {
              Value* value = side_by_side(&sums[tile.sum(r, g, i)], count);
              const llvm::Align align = aligned_to(count * c_bytes_);
              if (adds)
                value = b.CreateFAdd(value, b.CreateAlignedLoad(lanes(count), c_address(row, column), align));
              put(row, column, value, count);
            });
          }
        }
      }
    });
  }
  // Between the products and the first put.
  void begin_epilogue() {
    if (kernel_.epilogue) evaluator_.begin_function();
  }
  // `count` finished elements of C from (row, column) on: into memory, through the epilogue, or both.
  void put(Value* row, Value* column, Value* value, int count) {
    if (!kernel_.epilogue || kernel_.epilogue->keeps) {
      Value* rounded = c_bytes_ == 2 ? t_.half.narrow(value, kernel_.result) : value;
      b.CreateAlignedStore(rounded, c_address(row, column), aligned_to(count * c_bytes_));
    }
    if (kernel_.epilogue) pass_on(row, column, t_.round(value, kernel_.result), count);
  }

  const GemmKernel& kernel_;
  const GemmTile& tile_;
  const int bytes_, c_bytes_;  // of an element of A and B, and of C
  Matrix a_{}, b_{};
  Value *c_address_ = nullptr, *c_row_ = nullptr;  // elements from one row to the next
  Value *m_ = nullptr, *n_ = nullptr, *k_ = nullptr;
  Value *thread_ = nullptr, *row0_ = nullptr, *column0_ = nullptr;  // the block's first row and column of C

 private:
  // The epilogue at some elements: as in kernels.cpp, all its reads come before its writes.
  void pass_on(Value* row, Value* column, Value* value, int count) {
    const auto index = [&](Value* word) { return b.CreateZExtOrTrunc(word, t_.index_type); };
    Point point{index(row), index(column), nullptr, static_cast<unsigned>(count)};
    if (t_.body.flat) {
      point.column = b.CreateAdd(b.CreateMul(point.row, index(n_)), point.column);
      point.row = t_.index(0);
    }
    evaluator_.begin_row(point.row);
    evaluator_.begin_point(point);
    evaluator_.give(kernel_.epilogue->slot, value);
    std::vector<Evaluator::Pending> pending;
    for (size_t m = 0; m < t_.body.members.size(); ++m) evaluator_.prepare(static_cast<int32_t>(m), pending);
    evaluator_.flush(pending);
  }

  Evaluator evaluator_;
};

// The two emitters, between begin and end of a function that is a product's.
void emit_ffma_gemm(Target& target, const GemmKernel& kernel);
void emit_mma_gemm(Target& target, const GemmKernel& kernel, bool modern);

}  // namespace gacc::codegen
