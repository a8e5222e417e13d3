// The built-in products' PTX: assembled for every target without a spilled register, where there is a ptxas;
// and what must or must not stand in it.
#include "codegen/device_code.h"
#include "tests/codegen/gemm/products.h"
#include "tests/codegen/ptxas.h"

namespace gacc::codegen {
namespace {

class GemmPtx : public testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Targets, GemmPtx, testing::ValuesIn(known_targets()),
                         [](const auto& info) { return std::string(info.param); });

// Every product of a type: `count` kernels.
void assemble(const std::string& target, ir::DType dtype, size_t count) {
  SCOPED_TRACE(ir::dtype_text(dtype));
  Diag diag;
  const auto code = emit_nvptx(every_product(dtype), target, diag);
  ASSERT_TRUE(code) << diag.render();
  ASSERT_EQ(code->products.size(), count);
  expect_no_spills(code->ptx, target, count);
}

TEST_P(GemmPtx, AssemblesWithoutSpills) {
  const std::string target(GetParam());
  if (find_ptxas().empty())
    GTEST_SKIP() << "no ptxas on this machine: PTX for " << target << " was not assembled";
  assemble(target, ir::DType::f32, 40);
  assemble(target, ir::DType::f16, 32);
  // On later targets bf16 differs from f16 by the name of the type alone.
  if (target == "sm_75") assemble(target, ir::DType::bf16, 40);
  if (target == "sm_80") assemble(target, ir::DType::bf16, 32);
}

TEST(GemmPtxText, RulesOfTheKernels) {
  Diag diag;
  const auto code = emit_nvptx(every_product(), "sm_80", diag, /*shows_llvm_ir=*/true);
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

TEST(GemmPtxText, TensorCoresWhereThereAreSome) {
  const auto ptx = [](ir::DType dtype, const char* target) {
    Diag diag;
    const auto code = emit_nvptx(every_product(dtype), target, diag);
    EXPECT_TRUE(code) << diag.render();
    return code ? code->ptx : "";
  };
  const auto expect = [](const std::string& text, std::initializer_list<const char*> with,
                         std::initializer_list<const char*> without) {
    for (const char* part : with) EXPECT_NE(text.find(part), std::string::npos) << part;
    for (const char* part : without) EXPECT_EQ(text.find(part), std::string::npos) << part;
  };
  expect(ptx(ir::DType::f16, "sm_80"),
         {"cp.async.cg.shared.global", "cp.async.wait_group 1;", "cp.async.wait_group 2;",
          "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "cvt.rn.f16x2.f32", "st.global.v2.f32"},
         {"ld.global.nc", "m16n8k8", ".extern", "atom.", "fma.rn"});
  expect(ptx(ir::DType::bf16, "sm_80"),
         {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "cvt.rn.bf16x2.f32"}, {"fma.rn"});
  expect(ptx(ir::DType::f16, "sm_75"),
         {".version 6.5", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "ldmatrix", "cvt.rn.f16.f32"},
         {"cp.async", "m16n8k16", "f16x2"});
  expect(ptx(ir::DType::bf16, "sm_75"), {"fma.rn.f32"}, {"mma.sync", "cp.async", "cvt.rn.bf16"});
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
