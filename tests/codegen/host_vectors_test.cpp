// Host code is vectors of the machine's width, masked at the end; nothing is left for a library to do.
#include <gtest/gtest.h>
#include <llvm/IR/Module.h>

#include "codegen/host/jit.h"
#include "codegen/host/target.h"
#include "tests/codegen/groups.h"

namespace gacc::codegen {
namespace {

// The kernels as LLVM IR text, after the passes, in vectors of `lanes`.
std::string host_llvm_ir(const ModuleKernels& program, unsigned lanes) {
  llvm::LLVMContext context;
  llvm::Module module("host", context);
  std::string problem, text;
  for (const Body& body : program.functions)
    if (!emit_kernel(*make_host_target(module, body, lanes, /*fma=*/true, /*f16c=*/true), body.name, problem))
      return problem;
  if (!optimize(module, nullptr, problem)) return problem;
  llvm::raw_string_ostream out(text);
  module.print(out, nullptr);
  return text;
}

TEST(Host, CodeIsVectors) {
  const ir::Module module = group_module(kGroups[0].text, "40", "1");
  std::string problem;
  const auto program = make_program(module, Purpose::host, problem);
  ASSERT_TRUE(program) << problem;
  const unsigned width = host_vectors() == "avx512" ? 16 : host_vectors() == "avx2" ? 8 : 4;
  const std::string text = host_llvm_ir(*program, width), lanes = std::to_string(width);
  EXPECT_NE(text.find("load <" + lanes + " x float>"), std::string::npos);
  EXPECT_NE(text.find("@llvm.masked.store.v" + lanes + "f32"), std::string::npos);
  for (const char* library : {"@exp", "@tanh", "@erf", "@llvm.exp", "@llvm.erf"})
    EXPECT_EQ(text.find(library), std::string::npos) << library;
}

}  // namespace
}  // namespace gacc::codegen
