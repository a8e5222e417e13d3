// In which order a column sum adds is decided by its shape: the same sum in another kernel has the same bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/text/text.h"
#include "kernels/program.h"

namespace gacc::kernels {
namespace {

// The threads that add a column's rows, of a sum of `columns` columns over %t, which the ops make.
int64_t threads_down(int64_t columns, const std::string& ops, const std::string& dtype) {
  Diag diag;
  const auto module = ir::parse(
      fmt::format("module @m phase(planned) {{\nset train.micro_batch = 256\neval(%x : {0}[B,{1}]) {{\n{2}"
                  "%s = column_sum %t : f32[4,{1}] k(0) {{parts = 4}}\nyield metric s %s\n}}\n}}",
                  dtype, columns, ops),
      diag);
  EXPECT_TRUE(module) << diag.render();
  if (!module) return 0;
  std::string problem;
  const auto program = make_program(*module, Purpose::device, problem, GpuTarget("sm_80"));
  EXPECT_TRUE(program) << problem;
  if (!program) return 0;
  const BodyCall& call = program->calls(ir::RegionKind::eval).front();
  return call.block / program->functions[static_cast<size_t>(call.function)].side;
}

TEST(ColumnSum, OrderFollowsFromTheShape) {
  for (const int64_t columns : {16, 64, 96, 256, 768, 1000, 2304, 8192}) {
    SCOPED_TRACE(columns);
    const auto formula = [&](const char* name, const char* dtype) {
      return fmt::format("%t = {} %x : {}[B,{}] k(0)\n", name, dtype, columns);
    };
    const int64_t alone = threads_down(columns, formula("relu", "f32"), "f32");
    EXPECT_EQ(threads_down(columns, formula("relu", "f16"), "f16"), alone) << "halves";
    const std::string costly = fmt::format(
        "%a = gelu %x : f32[B,{0}] k(0)\n%b = gelu %a : f32[B,{0}] k(0)\n%c = gelu %b : f32[B,{0}] k(0)\n"
        "%t = gelu %c : f32[B,{0}] k(0)\n",
        columns);
    EXPECT_EQ(threads_down(columns, costly, "f16"), alone) << "a costly formula";
  }
}

}  // namespace
}  // namespace gacc::kernels
