// What the emitters of matrix products share: the kernel's function over Target, short names for its
// arithmetic, and the ends of the block's collectives.
#pragma once
#include <llvm/IR/Module.h>

#include "codegen/emit/gemm.h"
#include "codegen/emit/gpu.h"
#include "codegen/emit/target.h"

namespace gacc::codegen {

class GemmBase {
 protected:
  using Values = std::vector<Value*>;

  GemmBase(llvm::Module& module, const GemmKernel& kernel, int capability)
      : kernel_(kernel),
        tile_(*kernel.tile),
        threads_(tile_.threads()),
        body_(signature(kernel)),
        bytes_(static_cast<int>(ir::dtype_bytes(kernel.type))),
        c_bytes_(static_cast<int>(ir::dtype_bytes(kernel.result))),
        target_(make_nvptx_target(module, body_, capability)),
        b(target_->b) {}

  // The function, and where its block is in C: of the tile in `row0_`, `column0_`, the first element.
  void begin() {
    target_->begin(kernel_.name());
    m_ = target_->extents[0], n_ = target_->extents[1], k_ = target_->extents[2];
    thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    Value* block = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
    Value* across = b.CreateUDiv(b.CreateAdd(n_, word(tile_.n - 1)), word(tile_.n));
    Value* down = b.CreateUDiv(block, across);
    row0_ = b.CreateMul(down, word(tile_.m));
    column0_ = b.CreateMul(b.CreateSub(block, b.CreateMul(down, across)), word(tile_.n));
  }

  Value* word(int64_t value) { return b.getInt32(static_cast<uint32_t>(value)); }
  Value* special(llvm::Intrinsic::ID id) { return gpu::special(b, id); }
  Value* min(Value* x, Value* y) { return b.CreateSelect(b.CreateICmpULT(x, y), x, y); }
  Value* offset(Value* address, Value* bytes) { return b.CreateInBoundsGEP(b.getInt8Ty(), address, bytes); }
  Value* wide(Value* value) { return b.CreateZExt(value, b.getInt64Ty()); }
  Value* lane(Value* vector, int i) { return b.CreateExtractElement(vector, static_cast<uint64_t>(i)); }
  llvm::Type* lanes(int count) { return Math::with_lanes(b.getFloatTy(), static_cast<unsigned>(count)); }
  // As A and B, or C, lie in memory.
  llvm::Type* stored(int bytes, int count = 1) {
    llvm::Type* element = bytes == 2 ? static_cast<llvm::Type*>(b.getInt16Ty()) : b.getFloatTy();
    return Math::with_lanes(element, static_cast<unsigned>(count));
  }
  static llvm::Align aligned_to(int bytes) { return llvm::Align(static_cast<uint64_t>(bytes)); }
  Value* in_bytes(Value* elements) { return b.CreateShl(elements, bytes_ == 2 ? 1 : 2); }
  // Whether an address and the step from row to row are multiples of `bytes`, a power of two.
  Value* multiple_of(int bytes, Value* address, Value* stride) {
    Value* low = b.CreateOr(b.CreatePtrToInt(address, b.getInt64Ty()), stride);
    return b.CreateICmpEQ(b.CreateAnd(low, b.getInt64(static_cast<uint64_t>(bytes - 1))), b.getInt64(0));
  }

  Values either(Value* condition, const std::function<Values()>& yes, const std::function<Values()>& no) {
    return target_->either(condition, yes, no);
  }

  void barrier() { gpu::barrier(b); }

  // The block's shared memory.
  llvm::GlobalVariable* make_shared(llvm::Type* element, uint64_t count) {
    return gpu::shared_array(target_->module, element, count, kernel_.name());
  }

  // An element of C.
  Value* c_address(Value* row, Value* column) {
    Value* index = b.CreateAdd(b.CreateMul(wide(row), wide(n_)), wide(column));
    return b.CreateInBoundsGEP(stored(c_bytes_), target_->operands[2], index);
  }
  // Runs of `count` elements of C can be moved at once.
  Value* c_aligned(int count) {
    return multiple_of(count * c_bytes_, target_->operands[2], wide(b.CreateShl(n_, c_bytes_ == 2 ? 1 : 2)));
  }

  static Body signature(const GemmKernel& kernel) {
    Body body;
    body.form = ir::KernelForm::gemm;
    body.slots.resize(3);
    body.extents = 3;
    body.block = kernel.tile->threads();
    return body;
  }

  const GemmKernel& kernel_;
  const GemmTile& tile_;
  const int threads_;
  const Body body_;
  const int bytes_, c_bytes_;  // of an element of A and B, and of C
  std::unique_ptr<Target> target_;
  llvm::IRBuilder<>& b;
  Value *m_ = nullptr, *n_ = nullptr, *k_ = nullptr;
  Value *thread_ = nullptr, *row0_ = nullptr, *column0_ = nullptr;  // the block's first row and column of C
};

// The two emitters; `kernel`'s tile says which is meant.
llvm::Function* emit_ffma_gemm(llvm::Module& module, const GemmKernel& kernel, int capability);
llvm::Function* emit_mma_gemm(llvm::Module& module, const GemmKernel& kernel, int capability);

}  // namespace gacc::codegen
