// Approximate units of a GPU, conversions of pairs, and what the threads of a block do together.
#include "codegen/nvptx/instructions.h"

#include <llvm/IR/InlineAsm.h>

#include "codegen/nvptx/threads.h"

namespace gacc::codegen {

namespace {

class NvptxInstructions final : public Instructions, public Threads {
 public:
  explicit NvptxInstructions(bool has_bf16) {
    f16 = true;
    bf16 = pairs = has_bf16;
  }

  // div.full scales its operands: no quotient is lost where the divisor's reciprocal is no normal number.
  Value* fast_divide(llvm::IRBuilder<>& b, Value* x, Value* y) const override {
    llvm::Type* real = b.getFloatTy();
    auto* type = llvm::FunctionType::get(real, {real, real}, false);
    auto* code = llvm::InlineAsm::get(type, "div.full.f32 $0, $1, $2;", "=f,f,f", /*hasSideEffects=*/false);
    return b.CreateCall(type, code, {x, y});
  }
  Value* fast_exp2(llvm::IRBuilder<>& b, Value* x) const override {
    return unit(b, llvm::Intrinsic::nvvm_ex2_approx_ftz_f, {x});
  }
  Value* fast_reciprocal(llvm::IRBuilder<>& b, Value* x) const override {
    return unit(b, llvm::Intrinsic::nvvm_rcp_approx_ftz_f, {x});
  }
  // cvt.rn.f16x2.f32 d, high, low.
  Value* narrow_pair(llvm::IRBuilder<>& b, Value* low, Value* high, ir::DType dtype) const override {
    const bool is_f16 = dtype == ir::DType::f16;
    return unit(b, is_f16 ? llvm::Intrinsic::nvvm_ff2f16x2_rn : llvm::Intrinsic::nvvm_ff2bf16x2_rn,
                {high, low});
  }

  const Threads* threads() const override { return this; }
  Value* thread(llvm::IRBuilder<>& b) const override {
    return gpu::special(b, llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  }
  void barrier(llvm::IRBuilder<>& b) const override { gpu::barrier(b); }
  Value* exchange(llvm::IRBuilder<>& b, Value* value, unsigned distance) const override {
    return gpu::exchange(b, value, distance);
  }
  Value* of_member(llvm::IRBuilder<>& b, Value* value, unsigned member, unsigned team) const override {
    return gpu::of_member(b, value, member, team);
  }
  Value* ballot(llvm::IRBuilder<>& b, Value* condition) const override { return gpu::ballot(b, condition); }
  llvm::GlobalVariable* shared_array(llvm::Module& module, llvm::Type* element, uint64_t count,
                                     const std::string& name) const override {
    return gpu::shared_array(module, element, count, name);
  }

 private:
  static Value* unit(llvm::IRBuilder<>& b, llvm::Intrinsic::ID id, llvm::ArrayRef<Value*> operands) {
    return b.CreateIntrinsic(id, llvm::ArrayRef<llvm::Type*>{}, operands);
  }
};

}  // namespace

std::unique_ptr<Instructions> nvptx_instructions(bool bf16) {
  return std::make_unique<NvptxInstructions>(bf16);
}

}  // namespace gacc::codegen
