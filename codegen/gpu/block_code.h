// Short names for what the code of a block of threads is written with.
#pragma once
#include "codegen/emit/target.h"
#include "codegen/nvptx/instructions.h"

namespace gacc::codegen {

class BlockCode {
 protected:
  explicit BlockCode(Target& target) : t_(target), b(target.b) {}

  Value* word(int64_t value) { return t_.integer(value); }
  Value* real(double value) { return t_.real(value); }
  Value* special(llvm::Intrinsic::ID id) { return gpu::special(b, id); }
  Value* min(Value* x, Value* y) { return b.CreateSelect(b.CreateICmpULT(x, y), x, y); }
  Value* add(Value* x, int64_t constant) { return constant == 0 ? x : b.CreateAdd(x, word(constant)); }
  Value* offset(Value* address, Value* bytes) { return b.CreateInBoundsGEP(b.getInt8Ty(), address, bytes); }
  Value* wide(Value* value) { return b.CreateZExt(value, b.getInt64Ty()); }
  Value* lane(Value* vector, int i) { return b.CreateExtractElement(vector, static_cast<uint64_t>(i)); }
  llvm::Type* lanes(int count) { return Math::with_lanes(b.getFloatTy(), static_cast<unsigned>(count)); }
  // As elements of so many bytes lie in memory.
  llvm::Type* stored(int bytes, int count = 1) {
    llvm::Type* element = bytes == 2 ? static_cast<llvm::Type*>(b.getInt16Ty()) : b.getFloatTy();
    return Math::with_lanes(element, static_cast<unsigned>(count));
  }
  static llvm::Align aligned_to(int bytes) { return llvm::Align(static_cast<uint64_t>(bytes)); }
  // Scalars, or one, as what is put at once.
  Value* side_by_side(Value* const* values, int count) {
    if (count == 1) return values[0];
    Value* all = llvm::PoisonValue::get(lanes(count));
    for (int i = 0; i < count; ++i) all = b.CreateInsertElement(all, values[i], static_cast<uint64_t>(i));
    return all;
  }
  void barrier() { gpu::barrier(b); }
  // The block's shared memory.
  llvm::GlobalVariable* make_shared(llvm::Type* element, uint64_t count) {
    return gpu::shared_array(t_.module, element, count, t_.function->getName().str());
  }

  Target& t_;
  llvm::IRBuilder<>& b;
};

}  // namespace gacc::codegen
