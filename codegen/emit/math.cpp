// Transcendental functions, NaN-propagating extremes and Philox. The polynomials are our own minimax fits
// (weighted for the error relative to the result); each comment states the fitted form, its range and its
// error before rounding.
#include "codegen/emit/math.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/PatternMatch.h>

#include <limits>

namespace gacc::codegen {

using llvm::Type;

Type* Math::with_lanes(Type* element, unsigned lanes) {
  return lanes == 1 ? element : llvm::FixedVectorType::get(element, lanes);
}

unsigned Math::lanes(const Value* value) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(value->getType());
  return vector == nullptr ? 1 : vector->getNumElements();
}

Type* Math::lanes_of(Value* like, Type* element) { return with_lanes(element, lanes(like)); }

Value* Math::real(Value* like, double constant) {
  return llvm::ConstantFP::get(lanes_of(like, b_.getFloatTy()),
                               static_cast<double>(static_cast<float>(constant)));
}

Value* Math::integer(Value* like, int64_t constant) {
  return llvm::ConstantInt::getSigned(lanes_of(like, b_.getInt32Ty()), static_cast<int32_t>(constant));
}

Value* Math::bits(Value* real) { return b_.CreateBitCast(real, lanes_of(real, b_.getInt32Ty())); }
Value* Math::from_bits(Value* integer) {
  return b_.CreateBitCast(integer, lanes_of(integer, b_.getFloatTy()));
}

Value* Math::fma(Value* a, Value* b, Value* c) {
  if (!has_.fma) return b_.CreateFAdd(b_.CreateFMul(a, b), c);
  return b_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
}

Value* Math::polynomial(Value* x, std::initializer_list<double> low_to_high) {
  const double* coefficient = low_to_high.end() - 1;
  Value* sum = real(x, *coefficient);
  while (coefficient != low_to_high.begin()) sum = fma(sum, x, real(x, *--coefficient));
  return sum;
}

Value* Math::copy_sign(Value* magnitude, Value* sign) {
  Value* only_sign = b_.CreateAnd(bits(sign), integer(sign, std::numeric_limits<int32_t>::min()));
  return from_bits(b_.CreateOr(bits(magnitude), only_sign));
}

Value* Math::each_lane(std::initializer_list<Value*> operands,
                       const std::function<Value*(llvm::ArrayRef<Value*>)>& of) {
  const unsigned count = lanes(*operands.begin());
  if (count == 1) return of(llvm::ArrayRef(operands.begin(), operands.size()));
  Value* all = llvm::PoisonValue::get((*operands.begin())->getType());
  for (uint64_t i = 0; i < count; ++i) {
    llvm::SmallVector<Value*, 2> one;
    for (Value* operand : operands) one.push_back(b_.CreateExtractElement(operand, i));
    all = b_.CreateInsertElement(all, of(one), i);
  }
  return all;
}

Value* Math::fast_exp2(Value* x) {
  return each_lane({x}, [&](llvm::ArrayRef<Value*> lane) { return has_.fast_exp2(b_, lane[0]); });
}

Value* Math::div(Value* a, Value* b, Accuracy accuracy) {
  if (accuracy == Accuracy::f32) return b_.CreateFDiv(a, b);
  return each_lane({a, b},
                   [&](llvm::ArrayRef<Value*> lane) { return has_.fast_divide(b_, lane[0], lane[1]); });
}

// x = n ln 2 + r, |r| <= ln 2 / 2;  exp(x) = 2^n (1 + r + r^2 q(r)), error 3e-9.
Value* Math::exp(Value* x, Accuracy accuracy) {
  if (accuracy == Accuracy::half) return fast_exp2(b_.CreateFMul(x, real(x, 1.4426950408889634)));
  // Beyond these the result is 0 or inf anyway; the comparisons let NaN pass.
  x = b_.CreateSelect(b_.CreateFCmpOLT(x, real(x, -104.0)), real(x, -104.0), x);
  x = b_.CreateSelect(b_.CreateFCmpOGT(x, real(x, 89.0)), real(x, 89.0), x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; no conversion, so NaN does no harm.
  Value* magic = real(x, 12582912.0);
  Value* shifted = fma(x, real(x, 1.4426950408889634), magic);
  Value* n = b_.CreateFSub(shifted, magic);
  Value* whole = b_.CreateSub(bits(shifted), bits(magic));
  // ln 2 in two parts; n times the high one (which has 9 bits to spare) is exact.
  Value* r = fma(n, real(x, -0.693145751953125), x);
  r = fma(n, real(x, -1.4286068203094172e-06), r);
  Value* q = polynomial(r, {0.49999993448491753, 0.16666520643273658, 0.04166838792980551,
                            0.008368715411668608, 0.0013814599864520915});
  Value* p = b_.CreateFAdd(fma(b_.CreateFMul(r, r), q, r), real(x, 1.0));
  // 2^n as a product of two powers, each a normal number, so that denormal results round once and inf is
  // reached.
  Value* half = b_.CreateAShr(whole, integer(x, 1));
  const auto power = [&](Value* k) {
    return from_bits(b_.CreateShl(b_.CreateAdd(k, integer(x, 127)), integer(x, 23)));
  };
  return b_.CreateFMul(b_.CreateFMul(p, power(half)), power(b_.CreateSub(whole, half)));
}

// x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2));  log(1 + f) = f - f^2/2 + f^3 q(f), error 1e-9.
Value* Math::log(Value* x) {
  Value* tiny = b_.CreateFCmpOLT(x, real(x, 1.17549435e-38));
  Value* scaled =
      b_.CreateSelect(tiny, b_.CreateFMul(x, real(x, 8388608.0)), x);  // 2^23: denormals become normal
  Value* offset = b_.CreateSelect(tiny, integer(x, -23), integer(x, 0));
  // Subtracting the bits of sqrt(1/2) makes the exponent field n and the rest the distance from it.
  Value* root = integer(x, 0x3f3504f3);
  Value* distance = b_.CreateSub(bits(scaled), root);
  Value* n = b_.CreateSIToFP(b_.CreateAdd(b_.CreateAShr(distance, integer(x, 23)), offset), x->getType());
  Value* m = from_bits(b_.CreateAdd(b_.CreateAnd(distance, integer(x, 0x7fffff)), root));
  Value* f = b_.CreateFSub(m, real(x, 1.0));
  Value* q = polynomial(f, {0.33333312602803244, -0.2500000960365014, 0.20002118732192425,
                            -0.16667995667345023, 0.1421955090845909, -0.12405591412490505,
                            0.11888174592535267, -0.11675641329999187, 0.06746601372993805});
  Value* square = b_.CreateFMul(f, f);
  Value* small = fma(n, real(x, 1.4286068203094172e-06), b_.CreateFMul(b_.CreateFMul(square, f), q));
  Value* sum = b_.CreateFAdd(fma(square, real(x, -0.5), small), f);
  Value* result = fma(n, real(x, 0.693145751953125), sum);
  constexpr double inf = std::numeric_limits<double>::infinity();
  result = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, inf)), x, result);
  result = b_.CreateSelect(b_.CreateFCmpOEQ(x, real(x, 0.0)), real(x, -inf), result);
  return b_.CreateSelect(b_.CreateFCmpULT(x, real(x, 0.0)), real(x, std::numeric_limits<double>::quiet_NaN()),
                         result);
}

// |x| < 0.625: x + x^3 q(x^2), error 4e-9; else 1 - 2 / (exp(2|x|) + 1), which is exactly 1 beyond 9.1.
Value* Math::tanh(Value* x, Accuracy accuracy) {
  if (accuracy == Accuracy::half) return coarse_tanh(x);
  Value* t = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* square = b_.CreateFMul(t, t);
  Value* q = polynomial(square, {-0.3333328194018189, 0.1333144215753184, -0.053739712156552814,
                                 0.020639078740556666, -0.005704978373301341});
  Value* near = fma(b_.CreateFMul(square, t), q, t);
  Value* e = exp(b_.CreateFAdd(t, t));
  Value* far = b_.CreateFSub(real(x, 1.0), b_.CreateFDiv(real(x, 2.0), b_.CreateFAdd(e, real(x, 1.0))));
  return copy_sign(b_.CreateSelect(b_.CreateFCmpOLT(t, real(x, 0.625)), near, far), x);
}

// |x| < 0.25: x (1 + x^2 q(x^2)), the series, error 3e-7; else 1 - 2 / (2^(2 |x| / ln 2) + 1). Of |x|: where
// the tangent is 1, the power is large or inf and its reciprocal next to nothing, so 1 - tanh(x), which the
// tails of gelu_tanh multiply with x, keeps none of the units' errors.
Value* Math::coarse_tanh(Value* x) {
  Value* t = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* square = b_.CreateFMul(x, x);
  Value* near = b_.CreateFMul(
      x, polynomial(square, {1.0, -0.3333333333333333, 0.13333333333333333, -0.05396825396825397}));
  Value* e = fast_exp2(b_.CreateFMul(t, real(x, 2.8853900817779268)));
  Value* inverse = each_lane({b_.CreateFAdd(e, real(x, 1.0))},
                             [&](llvm::ArrayRef<Value*> lane) { return has_.fast_reciprocal(b_, lane[0]); });
  Value* far = copy_sign(fma(inverse, real(x, -2.0), real(x, 1.0)), x);
  return b_.CreateSelect(b_.CreateFCmpOLT(t, real(x, 0.25)), near, far);
}

// |x| < 1: x + x q(x^2), error 1e-9; else 1 - exp(-t p(t)) with t = min(|x|, 4), error 1e-9.
Value* Math::erf(Value* x, Accuracy accuracy) {
  Value* t = b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
  Value* q = polynomial(b_.CreateFMul(x, x),
                        {0.12837916572669067, -0.37612625824092927, 0.11283585147024419, -0.02685381186881466,
                         0.005188327559429407, -0.0008010192515568636, 7.853857689035708e-05});
  Value* near = fma(x, q, x);
  Value* c = b_.CreateSelect(b_.CreateFCmpOGT(t, real(x, 4.0)), real(x, 4.0), t);
  Value* p = polynomial(c, {1.1286370751331523, 0.6351980343507568, 0.10615904908278502, -0.02369456594830724,
                            0.0036103419515983197, -0.0003148581134226118, 1.0433114418198052e-05});
  Value* far = b_.CreateFSub(real(x, 1.0), exp(b_.CreateFNeg(b_.CreateFMul(c, p)), accuracy));
  return b_.CreateSelect(b_.CreateFCmpOLT(t, real(x, 1.0)), near, copy_sign(far, x));
}

// sin is odd and cos is even, to the bit: both see |x|, and sin has the sign of x.
Value* Math::sin(Value* x) { return sine(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), bits(x), 0); }
Value* Math::cos(Value* x) {
  return sine(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), integer(x, 0), 1);
}

// sin(t + quarters pi / 2) for t >= 0, negated where the top bit of `sign` is set. t = n pi / 2 + r with
// |r| < 0.79:  sin(r) = r + r^3 s(r^2), error 4e-9;  cos(r) = 1 + r^2 c(r^2), error 7e-11.
Value* Math::sine(Value* t, Value* sign, int quarters) {
  Value* magic = real(t, 12582912.0);  // 1.5 * 2^23 rounds to an integer, as in exp
  Value* shifted = fma(t, real(t, 0.6366197723675814), magic);
  Value* n = b_.CreateFSub(shifted, magic);
  Value* whole = b_.CreateAdd(bits(shifted), integer(t, quarters));
  // pi / 2 in four parts: the first two have 8 bits, so that n times them is exact without fma, too.
  Value* r = t;
  for (const double part : {1.5703125, 0.0004825592041015625, 1.2675907328230096e-06, 6.223371969669989e-14})
    r = fma(n, real(t, -part), r);
  // r is larger than 1 only where n is inexact, beyond 4e6; the comparisons let the NaN of infinity pass.
  r = b_.CreateSelect(b_.CreateFCmpOLT(r, real(t, -1.0)), real(t, -1.0), r);
  r = b_.CreateSelect(b_.CreateFCmpOGT(r, real(t, 1.0)), real(t, 1.0), r);
  Value* square = b_.CreateFMul(r, r);
  Value* s = polynomial(square, {-0.16666654177026669, 0.0083321329738765542, -0.00019511457921149381});
  Value* c = polynomial(
      square, {-0.49999999679467178, 0.041666618670297146, -0.0013886628613462342, 2.437860044412537e-05});
  Value* odd = b_.CreateICmpNE(b_.CreateAnd(whole, integer(t, 1)), integer(t, 0));
  Value* y = b_.CreateSelect(odd, fma(square, c, real(t, 1.0)), fma(b_.CreateFMul(square, r), s, r));
  Value* turned = b_.CreateXor(b_.CreateShl(whole, integer(t, 30)), sign);
  Value* top = b_.CreateAnd(turned, integer(t, std::numeric_limits<int32_t>::min()));
  return from_bits(b_.CreateXor(bits(y), top));
}

Value* Math::is_finite(Value* x) {
  return b_.CreateFCmpOLT(b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x),
                          real(x, std::numeric_limits<double>::infinity()));
}

Value* Math::pick(Value* a, Value* b, bool larger) {
  using namespace llvm::PatternMatch;
  if (!a->getType()->isFPOrFPVectorTy())
    return b_.CreateSelect(larger ? b_.CreateICmpSGT(a, b) : b_.CreateICmpSLT(a, b), a, b);
  if (match(b, m_NonNaN())) std::swap(a, b);
  Value* first = larger ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b);
  // A comparison with NaN is false and takes b; only a NaN in a needs a look of its own.
  if (!match(a, m_NonNaN())) first = b_.CreateOr(first, b_.CreateFCmpUNO(a, a));
  return b_.CreateSelect(first, a, b);
}

Value* Math::max(Value* a, Value* b) { return pick(a, b, true); }
Value* Math::min(Value* a, Value* b) { return pick(a, b, false); }

Value* Math::combine(ir::Combine how, Value* a, Value* b) {
  if (how == ir::Combine::max) return max(a, b);
  if (how == ir::Combine::min) return min(a, b);
  return a->getType()->isFPOrFPVectorTy() ? b_.CreateFAdd(a, b) : b_.CreateAdd(a, b);
}

llvm::Constant* Math::neutral(ir::Combine how, Type* type) {
  if (how == ir::Combine::sum) return llvm::Constant::getNullValue(type);
  const bool max = how == ir::Combine::max;
  if (type->isFloatTy()) return llvm::ConstantFP::getInfinity(type, /*Negative=*/max);
  return llvm::ConstantInt::getSigned(
      type, max ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int32_t>::max());
}

Value* Math::uniform(Value* seed_low, Value* seed_high, Value* stream, Value* ordinal, Value* index) {
  Type* word = lanes_of(index, b_.getInt32Ty());
  Type* wide = lanes_of(index, b_.getInt64Ty());
  // A word of a scalar is an i32. That of a vector is the lower half of an i64, whose upper half may be anything:
  // vectors multiply such halves in one instruction, and no word has to move to another lane.
  const bool vector = lanes(index) > 1;
  const auto from_wide = [&](Value* v) { return vector ? v : b_.CreateTrunc(v, word); };
  const auto from_word = [&](Value* v) { return vector ? b_.CreateZExt(v, wide) : v; };
  const auto high = [&](Value* p) { return from_wide(b_.CreateLShr(p, 32)); };
  const auto product = [&](uint32_t factor, Value* c) {
    Value* lower =
        vector ? b_.CreateAnd(c, llvm::ConstantInt::get(wide, 0xFFFFFFFFU)) : b_.CreateZExt(c, wide);
    return b_.CreateMul(lower, llvm::ConstantInt::get(wide, factor));
  };
  Value *c0 = from_wide(index), *c1 = high(index), *c2 = from_word(ordinal), *c3 = from_word(stream);
  Value *k0 = seed_low, *k1 = seed_high;
  for (int round = 0; round < 10; ++round) {
    Value *p0 = product(0xD2511F53, c0), *p1 = product(0xCD9E8D57, c2);
    Value* next0 = b_.CreateXor(b_.CreateXor(high(p1), c1), from_word(k0));
    Value* next2 = b_.CreateXor(b_.CreateXor(high(p0), c3), from_word(k1));
    c1 = from_wide(p1), c3 = from_wide(p0), c0 = next0, c2 = next2;
    k0 = b_.CreateAdd(k0, integer(k0, static_cast<int32_t>(0x9E3779B9U)));
    k1 = b_.CreateAdd(k1, integer(k1, static_cast<int32_t>(0xBB67AE85U)));
  }
  // 23 bits plus a half fit a float exactly, and so does every step here.
  if (vector) c0 = b_.CreateTrunc(c0, word);
  Value* top = b_.CreateUIToFP(b_.CreateLShr(c0, integer(c0, 9)), lanes_of(index, b_.getFloatTy()));
  return b_.CreateFMul(b_.CreateFAdd(top, real(top, 0.5)), real(top, 0x1p-23));
}

}  // namespace gacc::codegen
