// The operands of a convolution as matrices that nobody writes down (ConvProduct has their shapes).
//
// An element's place in memory is a sum: offset(row) + offset(column), since a pixel of a window lies as far from
// the window's first one whatever the window. Where the window reaches over the edge of the image is a matter of
// bits: a pixel *has* a bit for each row and each column of the kernel that meets the image there, a tap *wants*
// that of its own row and column. So an element costs an addition and a comparison, and the divisions that tell
// pixels and taps apart are made once for a row and once for a column of a tile.
#pragma once
#include "codegen/gpu/block_code.h"
#include "kernels/gemm.h"
#include "kernels/special/calls.h"

namespace gacc::codegen {

// A row or a column of an operand.
struct ConvPart {
  Value* offset = nullptr;  // index type, elements
  Value* bits = nullptr;    // that it has, or wants
};

// One operand of a block's product: C's rows (of A), or columns (of B), are its outer dimension.
struct ConvOperand {
  size_t slot = 0;
  int64_t run = 1;  // see ConvProduct
  bool inner_last = false, outer_wants = false;
  std::function<ConvPart(Value*index)> outer{}, inner{};
};

class ConvOperands : protected BlockCode {
 protected:
  explicit ConvOperands(Target& target);

  // For the product that a tile number t belongs to: what the block computes, from row0_ and column0_ on.
  void begin_product(Value* tile_number);

  ConvOperand left();   // A
  ConvOperand right();  // B
  // Behind the last tile of the inner dimension the first one is read again, and not used.
  Value* existing(Value* k0) { return b.CreateSelect(b.CreateICmpULT(k0, k_), k0, word(0)); }
  // Whether an operand's element exists, and its address (anything where it does not).
  Value* exists(const ConvOperand& operand, const ConvPart& outer, const ConvPart& inner) {
    Value* both = b.CreateAnd(outer.bits, inner.bits);
    return b.CreateICmpEQ(both, operand.outer_wants ? outer.bits : inner.bits);
  }
  Value* address(const ConvOperand& operand, const ConvPart& outer, const ConvPart& inner) {
    return element(operand.slot, b.CreateAdd(outer.offset, inner.offset));
  }
  Value* element(size_t slot, Value* index) {
    const int64_t bytes = ir::dtype_bytes(t_.body.slots[slot].dtype);
    return b.CreateGEP(b.getInt8Ty(), t_.operands[slot],
                       b.CreateMul(wide(index), b.getInt64(static_cast<uint64_t>(bytes))));
  }

  // Tiles that stand below one another in a group.
  int64_t down() const { return kernels::ceil_divide(product_.rows, tile_.m); }
  // C: an element's place is the sum of its row's and its column's; `run` neighbours of a row lie side by side.
  Value* c_row(Value* row);
  Value* c_column(Value* column);
  int64_t c_run() const { return kind_ == ConvKind::weight ? product_.others : product_.pixels; }
  void store(Value* row_offset, Value* column_offset, Value* value, int count);

  const ConvKind kind_;
  const ConvShape s_;
  const ConvProduct product_;
  const GemmTile& tile_;
  Value *m_ = nullptr, *n_ = nullptr, *k_ = nullptr;  // i32: of the block's product
  Value *row0_ = nullptr, *column0_ = nullptr;        // i32: the first ones of its tile

 private:
  static constexpr uint64_t kThere = 1, kNever = 2;  // bits: in the operand at all; that nothing has

  Value* narrow(Value* index) { return b.CreateTrunc(wide(index), b.getInt32Ty()); }
  Value* index(Value* word) { return b.CreateZExtOrTrunc(word, t_.index_type); }
  Value* times(Value* index, int64_t factor) { return b.CreateMul(index, t_.index(factor)); }
  Value* plus(Value* index, Value* word) {
    return b.CreateAdd(index, b.CreateSExtOrTrunc(word, t_.index_type));
  }
  Value* udiv(Value* x, int64_t by) { return by == 1 ? x : b.CreateUDiv(x, word(by)); }
  Value* urem(Value* x, int64_t by) { return by == 1 ? word(0) : b.CreateURem(x, word(by)); }
  Value* mask(uint64_t bits) { return llvm::ConstantInt::get(mask_type_, bits); }
  uint64_t bit_of(int axis) const { return axis == 0 ? 2 : 2 + static_cast<uint64_t>(s_.window.kernel[0]); }

  // Whether taps of an axis may miss the image.
  bool misses(int axis) const;
  ConvPart pixel(Value* number, Value* limit, Value* first_sample);
  ConvPart tap(Value* number);
  // `inside`: i1, or null for always.
  ConvPart dense(Value* offset, Value* inside, bool wants);

  llvm::Type* const mask_type_;
  Value *group_ = nullptr, *samples_ = nullptr, *part_ = nullptr;  // index type
};

}  // namespace gacc::codegen
