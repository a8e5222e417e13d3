// LLVM 19 selects no cp.async intrinsic once shared memory has pointers of 32 bits (notes/codegen.md, trap
// 3). gacc's kernels therefore write cp.async as assembly with a 32-bit shared address; such code is the same
// with either width of pointer, which this test asks of the back end. The switch holds for a whole process,
// so every selection has a process of its own.
#include <gtest/gtest.h>
#include <llvm/AsmParser/Parser.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/SourceMgr.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "codegen/device_code.h"
#include "tests/codegen/gemm/products.h"

namespace gacc::codegen {
namespace {

// PTX of `text` with 32-bit pointers to shared memory. LLVM ends the process where it cannot select.
std::string with_short_pointers(const std::string& text) {
  auto& options = llvm::cl::getRegisteredOptions();
  options.find("nvptx-short-ptr")->second->addOccurrence(0, "nvptx-short-ptr", "true");
  const char* triple = "nvptx64-nvidia-cuda";
  std::string problem;
#if LLVM_VERSION_MAJOR >= 22
  const llvm::Triple parsed(triple);
#else
  const std::string parsed = triple;
#endif
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(parsed, problem);
  if (found == nullptr) return problem;
  const std::unique_ptr<llvm::TargetMachine> machine(
      found->createTargetMachine(parsed, "sm_80", "", {}, std::nullopt));
  llvm::LLVMContext context;
  llvm::SMDiagnostic error;
  const std::string layout = machine->createDataLayout().getStringRepresentation();
  if (layout.find("p3:32:32") == std::string::npos) return "pointers to shared memory have 64 bits";
  const std::unique_ptr<llvm::Module> module = llvm::parseAssembly(
      llvm::MemoryBufferRef(text, "kernels"), error, context, nullptr,
      [&](llvm::StringRef, llvm::StringRef) -> std::optional<std::string> { return layout; });
  if (module == nullptr) return error.getMessage().str();
  llvm::SmallVector<char, 0> ptx;
  llvm::raw_svector_ostream out(ptx);
  llvm::legacy::PassManager passes;
  machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile);
  passes.run(*module);
  return {ptx.data(), ptx.size()};
}

size_t count(std::string_view text, std::string_view what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

const DeviceCode& products() {
  static const std::optional<DeviceCode> code = [] {
    Diag diag;
    return emit_nvptx(every_product(ir::DType::f16), "sm_80", diag, /*shows_llvm_ir=*/true);
  }();
  return *code;
}

TEST(ShortPointers, CopiesAreAssemblyOfEitherWidth) {
  const DeviceCode& code = products();
  EXPECT_EQ(code.llvm_ir.find("llvm.nvvm.cp.async"), std::string::npos);
  EXPECT_NE(code.llvm_ir.find("\"cp.async.cg.shared.global [$0], [$1], 16, $2;\", \"r,l,r"),
            std::string::npos);
  EXPECT_EXIT(
      {
        const std::string ptx = with_short_pointers(code.llvm_ir);
        const bool same = count(ptx, "cp.async.cg") == count(code.ptx, "cp.async.cg") &&
                          count(ptx, "ldmatrix") == count(code.ptx, "ldmatrix") &&
                          count(ptx, "cp.async.cg") > 0;
        if (!same) std::fprintf(stderr, "%s", ptx.substr(0, 500).c_str());
        std::exit(same ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// Why: the day this fails, LLVM has learned it and the rule may go.
TEST(ShortPointers, TheIntrinsicCannotBeSelected) {
  if (LLVM_VERSION_MAJOR >= 22) GTEST_SKIP() << "known of LLVM 19";
  products();  // registers the target
  EXPECT_DEATH(with_short_pointers(R"(
declare void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3), ptr addrspace(1))
define ptx_kernel void @copy(ptr addrspace(3) %to, ptr addrspace(1) %from) {
  call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3) %to, ptr addrspace(1) %from)
  ret void
})"),
               "Cannot select");
}

}  // namespace
}  // namespace gacc::codegen
