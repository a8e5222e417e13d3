#include "codegen/nvptx/instructions.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>

namespace gacc::codegen {

namespace {

// A shuffle of the warp. `members`: a lane's bit for each lane that acts, itself among them; null: all.
Value* shuffle(llvm::IRBuilder<>& b, Value* value, const std::string& mode, unsigned lane, unsigned segment,
               Value* members = nullptr) {
  llvm::Type* word = b.getInt32Ty();
  if (members == nullptr) members = b.getInt32(~0U);
  const std::string text =
      "shfl.sync." + mode + ".b32 $0, $1, " + std::to_string(lane) + ", " + std::to_string(segment) + ", $2;";
  Value* got = gpu::assembly(b, word, text, "=r,r,rn", {b.CreateBitCast(value, word), members});
  return b.CreateBitCast(got, value->getType());
}

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
  Value* opaque(llvm::IRBuilder<>& b, Value* word) const override {
    return gpu::assembly(b, b.getInt32Ty(), "mov.b32 $0, $1;", "=r,r", {word}, /*effects=*/false);
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
    // The upper bits say which bits of a lane's number are its team's.
    return shuffle(b, value, "idx", member, ((32 - team) << 8) | 31);
  }
  Value* ballot(llvm::IRBuilder<>& b, Value* condition) const override {
    return gpu::assembly(b, b.getInt32Ty(), "vote.sync.ballot.b32 $0, $1, 0xffffffff;", "=r,b", {condition});
  }
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

namespace gpu {

Value* special(llvm::IRBuilder<>& b, llvm::Intrinsic::ID id) {
  return b.CreateIntrinsic(id, llvm::ArrayRef<llvm::Type*>{}, llvm::ArrayRef<Value*>{});
}

Value* assembly(llvm::IRBuilder<>& b, llvm::Type* result, const std::string& text,
                const std::string& constraints, const Values& operands, bool effects) {
  std::vector<llvm::Type*> types;
  for (Value* operand : operands) types.push_back(operand->getType());
  llvm::FunctionType* type = llvm::FunctionType::get(result, types, false);
  llvm::CallInst* call = b.CreateCall(type, llvm::InlineAsm::get(type, text, constraints, effects), operands);
  call->setConvergent();
  return call;
}

void barrier(llvm::IRBuilder<>& b) { assembly(b, b.getVoidTy(), "bar.sync 0;", "~{memory}", {}); }

Value* exchange(llvm::IRBuilder<>& b, Value* value, unsigned distance, unsigned team) {
  if (team == 32) return shuffle(b, value, "bfly", distance, 31);
  Value* lane = special(b, llvm::Intrinsic::nvvm_read_ptx_sreg_laneid);
  Value* first = b.CreateAnd(lane, b.getInt32(~(team - 1)));
  return shuffle(b, value, "bfly", distance, 31, b.CreateShl(b.getInt32((1U << team) - 1), first));
}

Value* opaque(llvm::IRBuilder<>& b, Value* word) {
  return assembly(b, b.getInt32Ty(), "mov.b32 $0, $1;", "=r,r", {word});
}

Value* load_half_where(llvm::IRBuilder<>& b, Value* address, Value* condition) {
  return assembly(b, b.getInt16Ty(), "mov.b16 $0, 0;\n\t@$2 ld.global.b16 $0, [$1];", "=&h,l,b,~{memory}",
                  {b.CreatePtrToInt(address, b.getInt64Ty()), condition});
}

llvm::GlobalVariable* shared_array(llvm::Module& module, llvm::Type* element, uint64_t count,
                                   const std::string& name) {
  llvm::Type* type = llvm::ArrayType::get(element, count);
  auto* made = new llvm::GlobalVariable(module, type, false, llvm::GlobalValue::InternalLinkage,
                                        llvm::UndefValue::get(type), name + "_shared", nullptr,
                                        llvm::GlobalValue::NotThreadLocal, /*AddressSpace=*/3);
  made->setAlignment(llvm::Align(16));
  return made;
}

}  // namespace gpu
}  // namespace gacc::codegen
