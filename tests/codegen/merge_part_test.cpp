// A kernel's entry as a part of a merged kernel: how many places its block has.
#include "codegen/merge_part.h"

#include <gtest/gtest.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>

namespace gacc::codegen {
namespace {

int64_t places(bool meets, int64_t threads, int64_t block) {
  llvm::LLVMContext context;
  llvm::Module module("m", context);
  llvm::IRBuilder<> at(context);
  llvm::FunctionType* type = llvm::FunctionType::get(at.getVoidTy(), false);
  llvm::Function* entry = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "entry", module);
  at.SetInsertPoint(llvm::BasicBlock::Create(context, "", entry));
  if (meets)
    at.CreateCall(type, llvm::InlineAsm::get(type, "bar.sync 0;", "~{memory}", true))->setConvergent();
  at.CreateRetVoid();
  Part part;
  part.threads = threads;
  std::string problem;
  EXPECT_TRUE(make_part(module, "entry", block, part, problem)) << problem;
  return part.places;
}

// `bar.sync` takes 0 to 15, and 0 is the block's own: with 16 places the last one would wait at barrier 16.
TEST(MergePart, NoMorePlacesThanBarriers) {
  EXPECT_EQ(places(true, 32, 256), 8);
  EXPECT_EQ(places(true, 32, 512), 15);
  EXPECT_EQ(places(true, 64, 1024), 15);
  EXPECT_EQ(places(false, 32, 512), 16) << "no barrier, no bound";
}

}  // namespace
}  // namespace gacc::codegen
