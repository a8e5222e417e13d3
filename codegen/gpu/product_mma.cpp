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
  MmaEmitter(Target& target, const GemmKernel& kernel, bool modern)
      : GemmBase(target, kernel),
        modern_(modern),
        mma_(target, tile_, tile_.stages_with(modern), kernel.type, modern),
        cores_(mma_.cores()) {}

  void emit() {
    begin();
    mma_.place(thread_, !kernel_.transpose_a, kernel_.transpose_b);
    const Operand from_a = operand(a_, tile_.m, mma_.left());
    const Operand from_b = operand(b_, tile_.n, mma_.right());
    const Values sums = mma_.products(k_, {.send = [&](Value* k0, Value* buffer) {
                                        send(from_a, k0, buffer);
                                        send(from_b, k0, buffer);
                                      }});
    begin_epilogue();
    for (int r = 0; r < mma_.rows(); r += 2) store_rows(mma_, r, r + 2, sums, kernel_.accumulate);
  }

 private:
  // The staging of one operand in shared memory.
  struct Operand : Dense {
    int row_bytes = 0;                       // of the tile
    int moves = 0;                           // chunks of 16 bytes that a thread has of a tile
    int rows_apart = 0;                      // from one of a thread's chunks to the next
    Value *row = nullptr, *chunk = nullptr;  // the thread's first chunk in the tile
    Value* to = nullptr;                     // shared address of the first chunk in the first buffer
  };

  // `width`: the tile's extent.
  Operand operand(const Matrix& from, int width, const MmaTile::Layout& layout) {
    Operand o{dense(from, layout.inner_last, kChunk)};
    o.row_bytes = layout.row_bytes();
    o.moves = width * tile_.k / kChunk / tile_.threads();
    o.rows_apart = tile_.threads() / layout.chunks;
    o.row = b.CreateUDiv(thread_, word(layout.chunks));
    o.chunk = b.CreateURem(thread_, word(layout.chunks));
    o.to = mma_.chunk(layout, o.row, o.chunk);
    reach(o, from, o.inner_last ? o.row : o.chunk, o.inner_last ? 0 : 3, o.moves, o.rows_apart);
    return o;
  }

  // Sends the tile that begins at k0 to the buffer at `buffer` bytes.
  void send(const Operand& o, Value* k0, Value* buffer) {
    const auto whole = [&] {
      for (int v = 0; v < o.moves; ++v) {
        Value* exists = b.CreateICmpULT(inner(o, k0, v), k_);
        Value* from = address(o, v, 0, inner(o, k0, v), exists);
        Value* to = b.CreateAdd(o.to, add(buffer, v * o.rows_apart * o.row_bytes));
        if (!kernel_.pitch) {
          cores_.copy(to, from, exists);
          continue;
        }
        // Rows with a gap end inside of a chunk.
        Value* left = o.inner_last ? min(b.CreateSub(k_, inner(o, k0, v)), word(kChunk)) : o.left;
        left = b.CreateSelect(exists, left, word(0));
        if (modern_) {
          cores_.copy_bytes(to, from, in_bytes(left));
        } else {
          const auto at_once = [&] {
            return Values{b.CreateAlignedLoad(stored(2, kChunk), from, llvm::Align(16))};
          };
          deposit(to, t_.either(b.CreateICmpEQ(left, word(kChunk)), at_once,
                                [&] { return gather(o, k0, v); })[0]);
        }
      }
      return Values{};
    };
    const auto pieces = [&] {
      for (int v = 0; v < o.moves; ++v)
        deposit(b.CreateAdd(o.to, add(buffer, v * o.rows_apart * o.row_bytes)), gather(o, k0, v)[0]);
      return Values{};
    };
    t_.either(o.aligned, whole, pieces);
  }
  void deposit(Value* to, Value* chunk) {
    cores_.put(to, b.CreateBitCast(chunk, llvm::FixedVectorType::get(b.getInt32Ty(), 4)));
  }
  // Chunk v, element by element.
  Values gather(const Operand& o, Value* k0, int v) {
    Value* chunk = llvm::PoisonValue::get(stored(2, kChunk));
    for (int j = 0; j < kChunk; ++j) {
      Value* exists = b.CreateICmpULT(add(inner(o, k0, v), o.inner_last ? j : 0), k_);
      Value* from = address(o, v, j, add(inner(o, k0, v), o.inner_last ? j : 0), exists);
      Value* element = b.CreateAlignedLoad(b.getInt16Ty(), from, llvm::Align(2));
      chunk = b.CreateInsertElement(chunk, b.CreateSelect(exists, element, b.getInt16(0)), uint64_t(j));
    }
    return {chunk};
  }

  // Returns the begin of the thread's chunk v along the inner dimension.
  Value* inner(const Operand& o, Value* k0, int v) {
    return o.inner_last ? b.CreateAdd(k0, b.CreateShl(o.chunk, 3))
                        : add(b.CreateAdd(k0, o.row), v * o.rows_apart);
  }

  const bool modern_;  // cp.async, and mma over 16 of the inner dimension
  MmaTile mma_;
  TensorCores& cores_;
};

}  // namespace

void emit_mma_gemm(Target& target, const GemmKernel& kernel, bool modern) {
  MmaEmitter(target, kernel, modern).emit();
}

}  // namespace gacc::codegen
