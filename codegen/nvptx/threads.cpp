#include "codegen/nvptx/threads.h"

#include <cstdint>

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>

namespace gacc::codegen::gpu {

using llvm::Value;

Value* special(llvm::IRBuilder<>& b, llvm::Intrinsic::ID id) {
  return b.CreateIntrinsic(id, llvm::ArrayRef<llvm::Type*>{}, llvm::ArrayRef<Value*>{});
}

Value* assembly(llvm::IRBuilder<>& b, llvm::Type* result, const std::string& text,
                const std::string& constraints, const std::vector<Value*>& operands, bool effects) {
  std::vector<llvm::Type*> types;
  for (Value* operand : operands) types.push_back(operand->getType());
  llvm::FunctionType* type = llvm::FunctionType::get(result, types, false);
  llvm::CallInst* call = b.CreateCall(type, llvm::InlineAsm::get(type, text, constraints, effects), operands);
  call->setConvergent();
  return call;
}

void barrier(llvm::IRBuilder<>& b) { assembly(b, b.getVoidTy(), "bar.sync 0;", "~{memory}", {}); }

namespace {

// `members`: a lane's bit for each lane that acts, itself among them; null: all.
Value* shuffle(llvm::IRBuilder<>& b, Value* value, const std::string& mode, unsigned lane, unsigned segment,
               Value* members = nullptr) {
  llvm::Type* word = b.getInt32Ty();
  if (members == nullptr) members = b.getInt32(~0U);
  const std::string text =
      "shfl.sync." + mode + ".b32 $0, $1, " + std::to_string(lane) + ", " + std::to_string(segment) + ", $2;";
  Value* got = assembly(b, word, text, "=r,r,rn", {b.CreateBitCast(value, word), members});
  return b.CreateBitCast(got, value->getType());
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
  return assembly(b, b.getInt32Ty(), "vote.sync.ballot.b32 $0, $1, 0xffffffff;", "=r,b", {condition});
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

}  // namespace gacc::codegen::gpu
