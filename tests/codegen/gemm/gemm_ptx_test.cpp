// The built-in products' PTX: assembled for every target without a spilled register, where there is a ptxas;
// and what must or must not stand in it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "codegen/nvptx.h"
#include "tests/codegen/gemm/products.h"

namespace gacc::codegen {
namespace {

std::string find_ptxas() {
  for (const char* path : {"/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return std::system("command -v ptxas > /dev/null 2>&1") == 0 ? "ptxas" : "";
}

class GemmPtx : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Targets, GemmPtx, testing::ValuesIn(known_targets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(GemmPtx, AssemblesWithoutSpills) {
  const std::string ptxas = find_ptxas(), target(GetParam());
  if (ptxas.empty()) GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  Diag diag;
  const auto code = emit_nvptx(every_product(), target, diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->products.size(), 32U);
  char folder[] = "/tmp/gacc-gemm-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/all.ptx", log = std::string(folder) + "/log";
  std::ofstream(path) << code->ptx;
  const int status = std::system(
      fmt::format("{} -v -arch={} -o {}/all.cubin {} > {} 2>&1", ptxas, target, folder, path, log).c_str());
  std::ifstream in(log);
  const std::string messages((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(status, 0) << messages.substr(0, 2000);
  size_t reports = 0;
  const std::regex spills("(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads");
  for (std::sregex_iterator at(messages.begin(), messages.end(), spills), end; at != end; ++at, ++reports) {
    for (int i : {1, 2, 3}) EXPECT_EQ((*at)[static_cast<size_t>(i)], "0") << messages;
  }
  EXPECT_EQ(reports, 32U);
  if (!HasFailure()) std::filesystem::remove_all(folder);
}

TEST(GemmPtxText, RulesOfTheKernels) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  for (const GemmKernel& kernel : code->products)
    EXPECT_NE(code->ptx.find(".entry " + kernel.name() + "("), std::string::npos) << kernel.name();
  for (const char* text :
       {"ld.global.v4.f32", "ld.shared.v4.f32", "st.global.v4.f32", "fma.rn.f32", "bar.sync"})
    EXPECT_NE(code->ptx.find(text), std::string::npos) << text;
  // C may be read before it is written, so nothing may be called constant; sums have one order.
  for (const char* text : {"ld.global.nc", "atom.", "red.global", ".ftz", ".extern", "mul.rn.f32"})
    EXPECT_EQ(code->ptx.find(text), std::string::npos) << text;
  EXPECT_EQ(code->llvm_ir.find("noalias"), std::string::npos);
}

TEST(GemmPtxText, OnlyWhatTheModuleUses) {
  const ir::Module module = ir::parse_module(R"(set train.micro_batch = 32
    eval(%x : f32[B,64], %w : f32[32,64], %v : f32[32,32]) {
      %a = matmul %x, %w : f32[B,32] {tb}
      %b = matmul %a, %v : f32[B,32] {tb}
      %c = matmul %b, %v : f32[B,32]
    })");
  Diag diag;
  const auto code = emit_nvptx(module, "sm_80", diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->products.size(), 2U);
  EXPECT_EQ(code->products[0].name(), "gacc_gemm_f32_nt_16x16");
  EXPECT_EQ(code->products[1].name(), "gacc_gemm_f32_nn_16x16");
  EXPECT_EQ(code->ptx, emit_nvptx(module, "sm_80", diag)->ptx);
}

}  // namespace
}  // namespace gacc::codegen
