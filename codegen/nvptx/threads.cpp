// See threads.h.
#include "codegen/nvptx/threads.h"

#include <cstdint>

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>

namespace gacc::codegen::gpu {

using llvm::Value;

Value* special(llvm::IRBuilder<>& b, llvm::Intrinsic::ID id) {
  return b.CreateIntrinsic(id, llvm::ArrayRef<llvm::Type*>{}, llvm::ArrayRef<Value*>{});
}

void barrier(llvm::IRBuilder<>& b) {
  llvm::FunctionType* type = llvm::FunctionType::get(b.getVoidTy(), false);
  b.CreateCall(type, llvm::InlineAsm::get(type, "bar.sync 0;", "~{memory}", /*hasSideEffects=*/true))
      ->setConvergent();
}

namespace {

// `members`: a lane's bit for each lane that acts, itself among them; null: all.
Value* shuffle(llvm::IRBuilder<>& b, Value* value, const std::string& mode, unsigned lane, unsigned segment,
               Value* members = nullptr) {
  llvm::Type* word = b.getInt32Ty();
  if (members == nullptr) members = b.getInt32(~0U);
  llvm::FunctionType* type = llvm::FunctionType::get(word, {word, word}, false);
  const std::string text =
      "shfl.sync." + mode + ".b32 $0, $1, " + std::to_string(lane) + ", " + std::to_string(segment) + ", $2;";
  llvm::CallInst* call =
      b.CreateCall(type, llvm::InlineAsm::get(type, text, "=r,r,rn", /*hasSideEffects=*/true),
                   {b.CreateBitCast(value, word), members});
  call->setConvergent();
  return b.CreateBitCast(call, value->getType());
}

}  // namespace

Value* exchange(llvm::IRBuilder<>& b, Value* value, unsigned distance, unsigned team) {
  if (team == 32) return shuffle(b, value, "bfly", distance, 31);
  Value* lane = special(b, llvm::Intrinsic::nvvm_read_ptx_sreg_laneid);
  Value* first = b.CreateAnd(lane, b.getInt32(~(team - 1)));
  return shuffle(b, value, "bfly", distance, 31, b.CreateShl(b.getInt32((1U << team) - 1), first));
}

Value* of_member(llvm::IRBuilder<>& b, Value* value, unsigned member, unsigned team) {
  // The upper bits say which bits of a lane's number are its team's.
  return shuffle(b, value, "idx", member, ((32 - team) << 8) | 31);
}

Value* ballot(llvm::IRBuilder<>& b, Value* condition) {
  llvm::FunctionType* type = llvm::FunctionType::get(b.getInt32Ty(), {b.getInt1Ty()}, false);
  llvm::CallInst* call = b.CreateCall(
      type,
      llvm::InlineAsm::get(type, "vote.sync.ballot.b32 $0, $1, 0xffffffff;", "=r,b", /*hasSideEffects=*/true),
      {condition});
  call->setConvergent();
  return call;
}

llvm::Value* opaque(llvm::IRBuilder<>& b, llvm::Value* word) {
  llvm::FunctionType* type = llvm::FunctionType::get(b.getInt32Ty(), {b.getInt32Ty()}, false);
  return b.CreateCall(type, llvm::InlineAsm::get(type, "mov.b32 $0, $1;", "=r,r", /*hasSideEffects=*/true),
                      {word});
}

llvm::Value* load_half_where(llvm::IRBuilder<>& b, llvm::Value* address, llvm::Value* condition) {
  llvm::FunctionType* type = llvm::FunctionType::get(b.getInt16Ty(), {b.getInt64Ty(), b.getInt1Ty()}, false);
  return b.CreateCall(type,
                      llvm::InlineAsm::get(type, "mov.b16 $0, 0;\n\t@$2 ld.global.b16 $0, [$1];",
                                           "=&h,l,b,~{memory}", /*hasSideEffects=*/true),
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

}  // namespace gacc::codegen::gpu
