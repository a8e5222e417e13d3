// Built-in matrix products of half types by tensor cores: how dense operands get into the tiles of mma_tile.h.
//
// From sm_80 on tiles travel by cp.async, 16 bytes at a time; before, and where rows do not begin at
// multiples of 16 bytes, through registers.
//
// Nothing is read out of bounds and no thread leaves early: coordinates past the edge of C are moved back
// onto it (the products are computed and not stored); past the end of the inner dimension both operands are
// zero.
#include "codegen/gpu/mma_tile.h"
#include "codegen/gpu/product_base.h"

namespace gacc::codegen {

namespace {

constexpr int kChunk = MmaTile::kChunk;

class MmaEmitter : GemmBase {
 public:
  MmaEmitter(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu, const Body* then)
      : GemmBase(module, kernel, gpu, then),
        modern_(gpu.async_copies),
        mma_(*target_, tile_, tile_.stages_with(modern_), kernel.type, modern_),
        cores_(mma_.cores()) {}

  llvm::Function* emit() {
    begin();
    place();
    const Values sums = mma_.products(k_, {.send = [&](Value* k0, Value* buffer) {
                                        send(a_, k0, buffer);
                                        send(b_, k0, buffer);
                                      }});
    begin_epilogue();
    for (int i = 0; i < mma_.fragments_m(); ++i) store_rows(i, sums);
    target_->end();
    return target_->function;
  }

 private:
  // How one operand is staged in shared memory.
  struct Operand {
    bool inner_last = false;                 // the inner dimension is the contiguous one
    int row_bytes = 0;                       // of the tile
    int moves = 0;                           // chunks of 16 bytes that a thread has of a tile
    int rows_apart = 0;                      // from one of a thread's chunks to the next
    Value* aligned = nullptr;                // i1, same for all threads: rows begin at multiples of 16 bytes
    Value* stride = nullptr;                 // i64: bytes from one row in memory to the next
    Value *row = nullptr, *chunk = nullptr;  // the thread's first chunk in the tile
    std::vector<Value*> begin{};     // inner_last: where each chunk's row begins; else, where the column does
    Value* to_element[kChunk] = {};  // else: bytes to elements 1, 2, ..., or 0 past the edge
    Value* room = nullptr;           // else: how many of a chunk's elements stand before the edge
    Value* to = nullptr;             // shared address of the first chunk in the first buffer
  };

  void place() {
    mma_.place(thread_, !kernel_.transpose_a, kernel_.transpose_b);
    a_ = operand(a_address_, a_row_, m_, row0_, tile_.m, mma_.left());
    b_ = operand(b_address_, b_row_, n_, column0_, tile_.n, mma_.right());
  }

  // `pitch` elements lie between its rows, `extent` is C's along the operand, `origin` the block's first place
  // there, `width` the tile's extent.
  Operand operand(Value* base, Value* pitch, Value* extent, Value* origin, int width,
                  const MmaTile::Layout& layout) {
    Operand o;
    o.inner_last = layout.inner_last;
    o.row_bytes = layout.row_bytes();
    o.moves = width * tile_.k / kChunk / threads_;
    o.rows_apart = threads_ / layout.chunks;
    o.stride = wide(in_bytes(pitch));
    o.aligned = multiple_of(16, base, o.stride);
    o.row = b.CreateUDiv(thread_, word(layout.chunks));
    o.chunk = b.CreateURem(thread_, word(layout.chunks));
    o.to = mma_.chunk(layout, o.row, o.chunk);
    Value* last = b.CreateSub(extent, word(1));
    if (o.inner_last) {
      for (int v = 0; v < o.moves; ++v) {
        Value* row = min(add(b.CreateAdd(origin, o.row), v * o.rows_apart), last);
        o.begin.push_back(offset(base, b.CreateMul(wide(row), o.stride)));
      }
    } else {
      Value* column = b.CreateAdd(origin, b.CreateShl(o.chunk, 3));
      column = min(column, b.CreateSelect(o.aligned, last_run(extent, kChunk), last));
      o.begin.push_back(offset(base, wide(in_bytes(column))));
      Value* left = b.CreateSub(extent, column);
      o.room = b.CreateSelect(b.CreateICmpULT(column, extent), min(left, word(kChunk)), word(0));
      for (int j = 0; j < kChunk; ++j)
        o.to_element[j] = wide(in_bytes(min(word(j), b.CreateSub(last, column))));
    }
    return o;
  }

  // Sends the tile that begins at k0 to the buffer at `buffer` bytes.
  void send(const Operand& o, Value* k0, Value* buffer) {
    const auto whole = [&] {
      for (int v = 0; v < o.moves; ++v) {
        Value* exists = b.CreateICmpULT(inner(o, k0, v), k_);
        Value* from = address(o, k0, v, exists);
        Value* to = b.CreateAdd(o.to, add(buffer, v * o.rows_apart * o.row_bytes));
        if (!kernel_.pitch) {
          cores_.copy(to, from, exists);
          continue;
        }
        // Rows with a gap end inside of a chunk.
        Value* left = o.inner_last ? min(b.CreateSub(k_, inner(o, k0, v)), word(kChunk)) : o.room;
        left = b.CreateSelect(exists, left, word(0));
        if (modern_) {
          cores_.copy_bytes(to, from, in_bytes(left));
        } else {
          const auto at_once = [&] {
            return Values{b.CreateAlignedLoad(stored(2, kChunk), from, llvm::Align(16))};
          };
          deposit(to,
                  either(b.CreateICmpEQ(left, word(kChunk)), at_once, [&] { return gather(o, k0, v); })[0]);
        }
      }
      return Values{};
    };
    const auto pieces = [&] {
      for (int v = 0; v < o.moves; ++v)
        deposit(b.CreateAdd(o.to, add(buffer, v * o.rows_apart * o.row_bytes)), gather(o, k0, v)[0]);
      return Values{};
    };
    either(o.aligned, whole, pieces);
  }
  void deposit(Value* to, Value* chunk) {
    cores_.put(to, b.CreateBitCast(chunk, llvm::FixedVectorType::get(b.getInt32Ty(), 4)));
  }
  // Chunk v, element by element.
  Values gather(const Operand& o, Value* k0, int v) {
    Value* chunk = llvm::PoisonValue::get(stored(2, kChunk));
    for (int j = 0; j < kChunk; ++j) {
      Value* exists = b.CreateICmpULT(add(inner(o, k0, v), o.inner_last ? j : 0), k_);
      Value* from = address(o, k0, v, exists, j);
      Value* element = b.CreateAlignedLoad(b.getInt16Ty(), from, llvm::Align(2));
      chunk = b.CreateInsertElement(chunk, b.CreateSelect(exists, element, b.getInt16(0)), uint64_t(j));
    }
    return {chunk};
  }

  // Where the thread's chunk v begins along the inner dimension.
  Value* inner(const Operand& o, Value* k0, int v) {
    return o.inner_last ? b.CreateAdd(k0, b.CreateShl(o.chunk, 3))
                        : add(b.CreateAdd(k0, o.row), v * o.rows_apart);
  }
  // Of element j of chunk v; where that does not exist, of one that does.
  Value* address(const Operand& o, Value* k0, int v, Value* exists, int j = 0) {
    Value* place = add(inner(o, k0, v), o.inner_last ? j : 0);
    place = wide(b.CreateSelect(exists, place, word(0)));
    if (o.inner_last) return offset(o.begin[static_cast<size_t>(v)], b.CreateShl(place, 1));
    Value* row = offset(o.begin[0], b.CreateMul(place, o.stride));
    return j == 0 ? row : offset(row, o.to_element[j]);
  }

  // The 16 rows of fragments i: two neighbouring elements at a time where C allows it.
  void store_rows(int i, const Values& sums) {
    put_runs(2, [&](bool pairs) {
      for (int half = 0; half < 2; ++half) {
        Value* row = mma_.row(row0_, i, half);
        Value* row_exists = b.CreateICmpULT(row, m_);
        for (int j = 0; j < mma_.fragments_n(); ++j) {
          Value* column = mma_.column(column0_, j);
          for (int e = 0; e < (pairs ? 1 : 2); ++e) {
            Value* value = side_by_side(&sums[mma_.sum(i, j, half) + static_cast<size_t>(e)], pairs ? 2 : 1);
            Value* exists = b.CreateAnd(row_exists, b.CreateICmpULT(add(column, e), n_));
            target_->branch(exists, [&] { store(row, add(column, e), value, pairs ? 2 : 1); });
          }
        }
      }
    });
  }
  void store(Value* row, Value* column, Value* value, int count) {
    if (kernel_.accumulate) {
      const llvm::Align align = aligned_to(count * c_bytes_);
      value = b.CreateFAdd(value, b.CreateAlignedLoad(lanes(count), c_address(row, column), align));
    }
    put(row, column, value, count);
  }

  const bool modern_;  // cp.async, and mma over 16 of the inner dimension
  MmaTile mma_;
  TensorCores& cores_;
  Operand a_{}, b_{};
};

}  // namespace

llvm::Function* emit_mma_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                              const Body* then) {
  return MmaEmitter(module, kernel, gpu, then).emit();
}

}  // namespace gacc::codegen
