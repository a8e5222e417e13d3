// The instructions that a machine has and LLVM has no common word for. A target brings them; everything else in emit/
// is LLVM's own. This class itself is a machine that has none of them.
#pragma once
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/Support/ErrorHandling.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ir/types.h"

namespace llvm {
class GlobalVariable;
}

namespace gacc::codegen {

using llvm::Value;
using Values = std::vector<Value*>;

// Cooperation of the threads of a block on a GPU, 32 of which are a warp. All threads of a warp, or of the block for
// a barrier, get there together.
class Threads {
 public:
  virtual ~Threads() = default;
  virtual Value* thread(llvm::IRBuilder<>& b) const = 0;  // its number in the block (i32)
  // Waits until all threads of the block are here; then they see each other's memory.
  virtual void barrier(llvm::IRBuilder<>& b) const = 0;
  // Returns the value (32 bits) of the warp's thread whose number differs in exactly this bit.
  virtual Value* exchange(llvm::IRBuilder<>& b, Value* value, unsigned distance) const = 0;
  // Returns the value (32 bits) of thread number `member` of a team of `team` neighbours, a power of two.
  virtual Value* of_member(llvm::IRBuilder<>& b, Value* value, unsigned member, unsigned team) const = 0;
  // Returns an i32 whose bit L is the condition (i1) of the warp's thread L.
  virtual Value* ballot(llvm::IRBuilder<>& b, Value* condition) const = 0;
  // Makes an array in the block's memory, undefined at first, at a multiple of 16 bytes.
  virtual llvm::GlobalVariable* shared_array(llvm::Module& module, llvm::Type* element, uint64_t count,
                                             const std::string& name) const = 0;
};

class Instructions {
 public:
  virtual ~Instructions() = default;

  bool fma = true;     // multiply-adds that round once
  bool f16 = false;    // conversions f16 <-> f32
  bool bf16 = false;   // conversion f32 -> bf16 (the other way is a shift)
  bool pairs = false;  // conversions of two f32 to either half type
  // f32 functions with an error that the rounding to a half type hides; denormal operands and results may be 0.
  virtual Value* fast_divide(llvm::IRBuilder<>& b, Value* x, Value* y) const { return b.CreateFDiv(x, y); }
  virtual Value* fast_exp2(llvm::IRBuilder<>& b, Value* x) const {
    return b.CreateUnaryIntrinsic(llvm::Intrinsic::exp2, x);
  }
  virtual Value* fast_reciprocal(llvm::IRBuilder<>& b, Value* x) const {
    return b.CreateFDiv(llvm::ConstantFP::get(x->getType(), 1.0), x);
  }
  // Returns the word (i32), whose source LLVM does not see.
  virtual Value* opaque(llvm::IRBuilder<>&, Value* word) const { return word; }
  // Rounds two f32 at once, where there are `pairs`; returns 32 bits.
  virtual Value* narrow_pair(llvm::IRBuilder<>&, Value* /*low*/, Value* /*high*/, ir::DType) const {
    llvm_unreachable("this machine converts one number at a time");
  }
  virtual const Threads* threads() const { return nullptr; }  // null: a task has one thread
};

}  // namespace gacc::codegen
