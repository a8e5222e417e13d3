// Mathematics as LLVM IR: the same instructions for a GPU thread (scalar) and for the host (a vector of
// lanes), with every fused multiply-add written out, so that both targets give the same bits.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "codegen/emit/instructions.h"
#include "ir/op_info.h"

namespace gacc::codegen {

// The accuracy of a function. f32: see each. half: by the machine's fast instructions, with an error that the
// rounding to a half type hides (docs/gpu.md, "Functions of half precision").
enum class Accuracy : uint8_t { f32, half };

class Math {
 public:
  // Without `fma` (a host older than x86-64-v3) multiply-adds round twice and results may differ in the last
  // bits.
  Math(llvm::IRBuilder<>& builder, const Instructions& has) : b_(builder), has_(has) {}

  // The type of `element` with as many lanes as `like` has (like itself may be a scalar).
  static llvm::Type* lanes_of(Value* like, llvm::Type* element);
  static llvm::Type* with_lanes(llvm::Type* element, unsigned lanes);
  static unsigned lanes(const Value* value);

  Value* real(Value* like, double constant);
  Value* integer(Value* like, int64_t constant);  // i32 lanes

  Value* fma(Value* a, Value* b, Value* c);
  Value* polynomial(Value* x, std::initializer_list<double> low_to_high);
  // exp: 1 ulp; 0 below -103.98, inf above 88.73. log: 1 ulp; -inf at 0, NaN below. tanh, erf: 2 ulp. NaN
  // gives NaN. sin, cos: 1.6 ulp up to 1e3, 2.3 up to 1e5, 5 up to 4e6; beyond only a number in [-1, 1]; NaN of
  // infinities.
  Value* exp(Value* x, Accuracy accuracy = Accuracy::f32);
  Value* log(Value* x);
  Value* tanh(Value* x, Accuracy accuracy = Accuracy::f32);
  Value* erf(Value* x, Accuracy accuracy = Accuracy::f32);
  Value* sin(Value* x);
  Value* cos(Value* x);
  Value* div(Value* a, Value* b, Accuracy accuracy = Accuracy::f32);
  Value* is_finite(Value* x);
  // The larger (smaller) one; NaN when either is. Integers: signed.
  Value* max(Value* a, Value* b);
  Value* min(Value* a, Value* b);
  Value* combine(ir::Combine how, Value* a, Value* b);
  // The neutral element of `how` for scalars of `type` (float or i32).
  static llvm::Constant* neutral(ir::Combine how, llvm::Type* type);
  // One Philox4x32-10 word as a real in (0, 1): ((word >> 9) + 1/2) * 2^-23. Integers of 32 bits, `index`
  // of 64.
  Value* uniform(Value* seed_low, Value* seed_high, Value* stream, Value* ordinal, Value* index);

 private:
  Value* copy_sign(Value* magnitude, Value* sign);
  Value* pick(Value* a, Value* b, bool larger);
  Value* coarse_tanh(Value* x);
  Value* sine(Value* t, Value* sign, int quarters);
  // Calls `of` with the operands' scalars, lane by lane.
  Value* each_lane(std::initializer_list<Value*> operands,
                   const std::function<Value*(llvm::ArrayRef<Value*>)>& of);
  Value* fast_exp2(Value* x);
  Value* bits(Value* real);
  Value* from_bits(Value* integer);
  llvm::IRBuilder<>& b_;
  const Instructions& has_;
};

}  // namespace gacc::codegen
