// See gpu.h.
#include "codegen/emit/gpu.h"

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

Value* exchange(llvm::IRBuilder<>& b, Value* value, unsigned distance) {
  llvm::Type* word = b.getInt32Ty();
  llvm::FunctionType* type = llvm::FunctionType::get(word, {word}, false);
  const std::string text = "shfl.sync.bfly.b32 $0, $1, " + std::to_string(distance) + ", 31, 0xffffffff;";
  llvm::CallInst* call = b.CreateCall(type, llvm::InlineAsm::get(type, text, "=r,r", /*hasSideEffects=*/true),
                                      {b.CreateBitCast(value, word)});
  call->setConvergent();
  return b.CreateBitCast(call, value->getType());
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
