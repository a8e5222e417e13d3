#include "codegen/emit/blocks.h"

namespace gacc::codegen {

namespace {

using ir::DType;

constexpr int64_t kNumbers = 32, kPairs = kNumbers / 2;

// The bytes of one block.
class Block {
 public:
  Block(Target& t, int32_t slot, Value* block) : t_(t), b_(t.b), dtype_(t.body.slots[slot].dtype) {
    Value* first = b_.CreateMul(b_.CreateZExtOrTrunc(block, b_.getInt64Ty()), wide(ir::dtype_bytes(dtype_)));
    base_ = b_.CreateInBoundsGEP(b_.getInt8Ty(), t_.operands[slot], first);
  }

  DType dtype() const { return dtype_; }
  bool whole_bytes() const { return dtype_ == DType::q8_0; }
  bool has_least() const { return dtype_ == DType::q4_1; }

  Value* scale_address() const { return base_; }
  Value* least_address() const { return at(wide(2)); }
  // Returns the address of the integer of number `i`, or of numbers i and i + 16.
  Value* integer_address(Value* i) const {
    return at(b_.CreateAdd(b_.CreateZExtOrTrunc(i, b_.getInt64Ty()), wide(has_least() ? 4 : 2)));
  }

  Value* load_half(Value* address) const {
    return t_.half.widen(b_.CreateAlignedLoad(b_.getInt16Ty(), address, llvm::Align(2)), DType::f16);
  }
  void store_half(Value* value, Value* address) const {
    b_.CreateAlignedStore(t_.half.narrow(value, DType::f16), address, llvm::Align(2));
  }
  void store_byte(Value* integer, Value* address) const {
    b_.CreateAlignedStore(b_.CreateTrunc(integer, b_.getInt8Ty()), address, llvm::Align(1));
  }

 private:
  Value* wide(int64_t value) const { return b_.getInt64(static_cast<uint64_t>(value)); }
  Value* at(Value* byte) const { return b_.CreateInBoundsGEP(b_.getInt8Ty(), base_, byte); }

  Target& t_;
  llvm::IRBuilder<>& b_;
  DType dtype_;
  Value* base_;
};

}  // namespace

Value* load_numbers(Target& t, int32_t slot, Value* index, unsigned lanes) {
  llvm::IRBuilder<>& b = t.b;
  const auto all = [&](Value* one) { return t.splat(one, lanes); };
  const Block block(t, slot, b.CreateLShr(index, 5));
  Value* inside = b.CreateAnd(index, kNumbers - 1);
  Value* place = block.whole_bytes() ? inside : b.CreateAnd(index, kPairs - 1);
  Value* bytes = b.CreateAlignedLoad(Math::with_lanes(b.getInt8Ty(), lanes), block.integer_address(place),
                                     llvm::Align(lanes > 1 ? 2 : 1));
  llvm::Type* word = Math::with_lanes(b.getInt32Ty(), lanes);
  Value* integers = nullptr;
  if (block.whole_bytes()) {
    integers = b.CreateSExt(bytes, word);
  } else {
    Value* shift = b.CreateShl(b.CreateLShr(t.word(inside), 4), 2);  // 0 or 4
    integers = b.CreateAnd(b.CreateLShr(b.CreateZExt(bytes, word), all(shift)), all(b.getInt32(15)));
    if (!block.has_least()) integers = b.CreateSub(integers, all(b.getInt32(8)));
  }
  Value* real = b.CreateSIToFP(integers, Math::with_lanes(b.getFloatTy(), lanes));
  Value* numbers = b.CreateFMul(real, all(block.load_half(block.scale_address())));
  return block.has_least() ? b.CreateFAdd(numbers, all(block.load_half(block.least_address()))) : numbers;
}

void store_block(Target& t, int32_t slot, Value* index, const std::function<Value*(Value* column)>& number) {
  llvm::IRBuilder<>& b = t.b;
  const auto real = [&](double value) { return t.real(value); };
  const auto size = [&](Value* value) { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value); };
  const Block block(t, slot, index);
  // 1. The number farthest from 0 with its sign, the first of several; the least and the largest.
  const Target::Carried found =
      t.loop(t.index(0), t.index(kNumbers), t.index(1), {real(0), real(INFINITY), real(-INFINITY)},
             [&](Value* i, const Target::Carried& before) {
               Value* x = number(i);
               Value* farther = b.CreateFCmpOLT(size(before[0]), size(x));
               return Target::Carried{b.CreateSelect(farther, x, before[0]), t.math.min(before[1], x),
                                      t.math.max(before[2], x)};
             });
  Value* least = block.has_least() ? found[1] : real(0);
  Value* scale = block.whole_bytes() ? t.math.div(size(found[0]), real(127))
                 : block.has_least() ? t.math.div(b.CreateFSub(found[2], least), real(15))
                                     : t.math.div(found[0], real(-8));
  // 2. The integers. A scale that is 0 in f16 makes numbers of 0, whatever they are.
  Value* factor = b.CreateSelect(b.CreateFCmpOEQ(scale, real(0)), real(0), t.math.div(real(1), scale));
  const auto steps = [&](Value* column, double more) {
    Value* x = block.has_least() ? b.CreateFSub(number(column), least) : number(column);
    x = b.CreateFMul(x, factor);
    if (more != 0) x = b.CreateFAdd(x, real(more));
    return b.CreateSelect(t.math.is_finite(x), x, real(0));
  };
  if (block.whole_bytes()) {
    t.each(t.index(0), t.index(kNumbers), t.index(1), [&](Value* i) {
      // To the nearest, a half away from 0.
      Value* x = steps(i, 0);
      Value* down = b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, size(x));
      Value* up = b.CreateFCmpOGE(b.CreateFSub(size(x), down), real(0.5));
      Value* whole = b.CreateFPToSI(b.CreateFAdd(down, b.CreateSelect(up, real(1), real(0))), b.getInt32Ty());
      Value* negative = b.CreateFCmpOLT(x, real(0));
      block.store_byte(b.CreateSelect(negative, b.CreateNeg(whole), whole), block.integer_address(i));
    });
  } else {
    const double more = block.has_least() ? 0.5 : 8.5;
    const auto code = [&](Value* column) {
      return t.smaller(b.CreateFPToSI(steps(column, more), b.getInt32Ty()), b.getInt32(15));
    };
    t.each(t.index(0), t.index(kPairs), t.index(1), [&](Value* i) {
      Value* low = code(i);
      Value* high = code(b.CreateAdd(i, t.index(kPairs)));
      block.store_byte(b.CreateOr(low, b.CreateShl(high, 4)), block.integer_address(i));
    });
  }
  block.store_half(scale, block.scale_address());
  if (block.has_least()) block.store_half(least, block.least_address());
}

}  // namespace gacc::codegen
