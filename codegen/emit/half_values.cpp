#include "codegen/emit/half_values.h"

#include "codegen/emit/math.h"

namespace gacc::codegen {

using ir::DType;

llvm::Type* Half::like(Value* value, llvm::Type* element) { return Math::lanes_of(value, element); }

Value* Half::word(Value* value, uint32_t constant) {
  return llvm::ConstantInt::get(like(value, b_.getInt32Ty()), constant);
}

Value* Half::widen(Value* bits, DType dtype) {
  Value* real = nullptr;
  if (dtype == DType::bf16) {
    Value* wide = b_.CreateZExt(bits, like(bits, b_.getInt32Ty()));
    real = b_.CreateBitCast(b_.CreateShl(wide, 16), like(bits, b_.getFloatTy()));
  } else if (has_.f16) {
    Value* half = b_.CreateBitCast(bits, like(bits, b_.getHalfTy()));
    real = b_.CreateFPExt(half, like(bits, b_.getFloatTy()));
  } else {
    real = widen_f16(bits);
  }
  bits_[{real, dtype}] = bits;
  return real;
}

Value* Half::narrow(Value* real, DType dtype) {
  if (const auto known = bits_.find({real, dtype}); known != bits_.end()) return known->second;
  if (has_.pairs && Math::lanes(real) % 2 == 0) return narrow_pairs(real, dtype);
  if (dtype == DType::bf16 && !has_.bf16) return narrow_bf16(real);
  if (dtype == DType::f16 && !has_.f16) return narrow_f16(real);
  llvm::Type* half = dtype == DType::f16 ? b_.getHalfTy() : b_.getBFloatTy();
  return b_.CreateBitCast(b_.CreateFPTrunc(real, like(real, half)), like(real, b_.getInt16Ty()));
}

// The exponent moves up by 112 in a multiplication, which is exact for denormal numbers as well; 31 stands
// for inf and NaN and becomes 255.
Value* Half::widen_f16(Value* bits) {
  Value* wide = b_.CreateZExt(bits, like(bits, b_.getInt32Ty()));
  Value* magnitude = b_.CreateAnd(wide, 0x7fff);
  llvm::Type* real = like(bits, b_.getFloatTy());
  Value* scaled = b_.CreateFMul(b_.CreateBitCast(b_.CreateShl(magnitude, 13), real),
                                llvm::ConstantFP::get(real, 0x1p112));
  Value* result = b_.CreateBitCast(scaled, like(bits, b_.getInt32Ty()));
  Value* special = b_.CreateOr(b_.CreateShl(magnitude, 13), 0x7f800000);
  result = b_.CreateSelect(b_.CreateICmpUGE(magnitude, word(bits, 0x7c00)), special, result);
  Value* sign = b_.CreateShl(b_.CreateAnd(wide, 0x8000), 16);
  return b_.CreateBitCast(b_.CreateOr(result, sign), real);
}

Value* Half::narrow_f16(Value* real) {
  Value* bits = b_.CreateBitCast(real, like(real, b_.getInt32Ty()));
  Value* magnitude = b_.CreateAnd(bits, 0x7fffffff);
  Value* sign = b_.CreateLShr(b_.CreateAnd(bits, 0x80000000), 16);
  // Normal results: less than half a unit is added, a carry may reach the exponent, and 65520 is inf.
  Value* odd = b_.CreateAnd(b_.CreateLShr(magnitude, 13), 1);
  Value* normal = b_.CreateAdd(b_.CreateAdd(magnitude, odd), word(real, 0xc8000fff));
  normal = b_.CreateLShr(normal, 13);
  normal = b_.CreateSelect(b_.CreateICmpUGE(magnitude, word(real, 0x47800000)), word(real, 0x7c00), normal);
  // Denormal ones: a sum with 1/2 has its last bit where an f16 has it.
  llvm::Type* type = real->getType();
  Value* sum = b_.CreateFAdd(b_.CreateBitCast(magnitude, type), llvm::ConstantFP::get(type, 0.5));
  Value* small = b_.CreateSub(b_.CreateBitCast(sum, like(real, b_.getInt32Ty())), word(real, 0x3f000000));
  Value* result = b_.CreateSelect(b_.CreateICmpULT(magnitude, word(real, 0x38800000)), small, normal);
  Value* payload = b_.CreateAnd(b_.CreateLShr(magnitude, 13), 0x1ff);
  result = b_.CreateSelect(b_.CreateICmpUGT(magnitude, word(real, 0x7f800000)), b_.CreateOr(payload, 0x7e00),
                           result);
  return b_.CreateTrunc(b_.CreateOr(result, sign), like(real, b_.getInt16Ty()));
}

Value* Half::narrow_bf16(Value* real) {
  Value* bits = b_.CreateBitCast(real, like(real, b_.getInt32Ty()));
  Value* high = b_.CreateLShr(bits, 16);
  Value* odd = b_.CreateAnd(high, 1);
  Value* rounded = b_.CreateLShr(b_.CreateAdd(b_.CreateAdd(bits, word(real, 0x7fff)), odd), 16);
  Value* quiet = b_.CreateOr(high, 0x40);
  return b_.CreateTrunc(b_.CreateSelect(b_.CreateFCmpUNO(real, real), quiet, rounded),
                        like(real, b_.getInt16Ty()));
}

Value* Half::narrow_pairs(Value* real, DType dtype) {
  const unsigned lanes = Math::lanes(real);
  llvm::Type* pair = Math::with_lanes(b_.getInt16Ty(), 2);
  Value* all = llvm::PoisonValue::get(Math::with_lanes(b_.getInt32Ty(), lanes / 2));
  for (unsigned i = 0; i < lanes; i += 2) {
    Value* low = b_.CreateExtractElement(real, uint64_t{i});
    Value* high = b_.CreateExtractElement(real, uint64_t{i} + 1);
    Value* two = has_.narrow_pair(b_, low, high, dtype);
    if (lanes == 2) return b_.CreateBitCast(two, pair);
    all = b_.CreateInsertElement(all, b_.CreateBitCast(two, b_.getInt32Ty()), uint64_t{i / 2});
  }
  return b_.CreateBitCast(all, like(real, b_.getInt16Ty()));
}

}  // namespace gacc::codegen
