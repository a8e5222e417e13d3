// A kernel's entry as a part of a merged kernel.
#include "codegen/gpu/merge_part.h"

#include <gtest/gtest.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>

#include "kernels/program.h"

namespace gacc::codegen {
namespace {

TEST(MergePart, HasTheSharedMemoryThatItsTaskSays) {
  llvm::LLVMContext context;
  llvm::Module module("m", context);
  llvm::IRBuilder<> at(context);
  llvm::FunctionType* type = llvm::FunctionType::get(at.getVoidTy(), false);
  llvm::Function* entry = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "entry", module);
  at.SetInsertPoint(llvm::BasicBlock::Create(context, "", entry));
  at.CreateCall(type, llvm::InlineAsm::get(type, "bar.sync 0;", "~{memory}", true))->setConvergent();
  at.CreateRetVoid();
  Part part;
  part.threads = 64;
  part.places = 4;
  make_part(module, "entry", part);
  part.shared_bytes = 16;
  try {
    make_part(module, "entry", part);
    ADD_FAILURE() << "it says 16 bytes of a part that has none";
  } catch (const kernels::Unfit& unfit) {
    EXPECT_STREQ(unfit.what(), "entry has 0 bytes of shared memory, not 16");
  }
}

}  // namespace
}  // namespace gacc::codegen
