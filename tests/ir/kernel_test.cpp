// Kernels: accesses, forms, stages, traffic, reuse, and live ranges.
#include <gtest/gtest.h>

#include <tuple>

#include "ir/liveness.h"
#include "ir/text/text.h"

namespace gacc::ir {
namespace {

Module module_of(std::string_view step) {
  const std::string text = fmt::format(
      "module @m phase(fused) {{\n set train.micro_batch = 4\n param @w : f32[8,8]\n param @b : f32[8]\n "
      "accum @b.grad : f32[8] gradient(@b) sum\n"
      "step(%x : f32[B,8], %y : f32[B,8]) {{\n{}\n}}\n}}\n",
      step);
  Diag diag("t", text);
  auto module = parse(text, diag);
  EXPECT_TRUE(module) << diag.render();
  return module ? *module : Module{};
}

std::vector<std::string> names(const Module& module, const std::vector<Operand>& operands) {
  std::vector<std::string> out;
  for (const Operand& operand : operands) out.push_back(operand_text(module, module.step, operand));
  return out;
}
using Names = std::vector<std::string>;

TEST(Access, FollowsFromShapes) {
  const Shape domain = {kBatch, 5, 8};
  EXPECT_EQ(access({kBatch, 5, 8}, domain), Access::element);
  EXPECT_EQ(access({}, domain), Access::scalar);
  EXPECT_EQ(access({1, 1}, domain), Access::scalar);
  EXPECT_EQ(access({8}, domain), Access::suffix);
  EXPECT_EQ(access({1, 8}, domain), Access::suffix);
  EXPECT_EQ(access({5, 8}, domain), Access::suffix);
  EXPECT_EQ(rows({5, 8}, 1), 5);
  EXPECT_EQ(access({kBatch, 5, 1}, domain), Access::row);
  EXPECT_EQ(access({kBatch, 1, 8}, domain), std::nullopt);
  EXPECT_EQ(access({5, 1}, domain), Access::channel);
  EXPECT_EQ(access({5, 1, 1}, {kBatch, 5, 3, 2}), Access::channel);
  EXPECT_EQ(channel_inner({5, 1, 1}, {kBatch, 5, 3, 2}), 6);
  EXPECT_EQ(access({1, 3, 1}, {kBatch, 5, 3, 2}), Access::channel);
  EXPECT_EQ(access({3, 1, 1}, {kBatch, 5, 3, 2}), std::nullopt);
  EXPECT_EQ(access({kBatch, 1}, {kBatch, 1}), Access::element);
  EXPECT_EQ(rows(domain, 3), 15);
  EXPECT_EQ(columns({kBatch}), 1);
  EXPECT_EQ(rows({kBatch}, 3), 3);
}

TEST(Kernels, PointwiseKeepsInnerValuesInRegisters) {
  const Module m = module_of(
      "%a = add %x, @b : f32[B,8] k(0)\n%r = relu %a : f32[B,8] k(0)\n%z = mul %r, %y : f32[B,8] k(1)");
  const auto all = kernels(m, m.step);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].form, KernelForm::pointwise);
  EXPECT_EQ(names(m, all[0].reads), (Names{"%x", "@b"}));
  EXPECT_EQ(names(m, all[0].writes), (Names{"%r"}));
  EXPECT_EQ(names(m, all[1].reads), (Names{"%r", "%y"}));
  EXPECT_EQ(names(m, all[1].writes), (Names{}));  // nobody wants it
}

TEST(Kernels, RowwiseStagesCountReductions) {
  const Module m = module_of(
      "%max = row_max %x : f32[B,1] k(0)\n%c = sub %x, %max : f32[B,8] k(0)\n%e = exp %c : f32[B,8] k(0)\n"
      "%s = row_sum %e : f32[B,1] k(0)\n%r = reciprocal %s : f32[B,1] k(0)\n%p = mul %e, %r : f32[B,8] "
      "k(0)\n%q = relu %p : f32[B,8] k(1)");
  const auto all = kernels(m, m.step);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].form, KernelForm::rowwise);
  EXPECT_EQ(all[0].stages, 3);
  const int wanted[] = {0, 1, 1, 1, 2, 2};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(all[0].members[i].stage, wanted[i]) << i;
  EXPECT_TRUE(all[0].members[4].per_row);
  // %p is stored in the last stage: it may take %x's bytes; a value of an earlier stage may not.
  EXPECT_TRUE(may_reuse(m.step, all[0], *m.step.find("x"), *m.step.find("p")));
  EXPECT_FALSE(may_reuse(m.step, all[0], *m.step.find("x"), *m.step.find("e")));
  EXPECT_FALSE(may_reuse(m.step, all[0], *m.step.find("x"), *m.step.find("s")));
}

TEST(Kernels, ColumnReduceTakesPointwiseProducers) {
  const Module m = module_of("%d = mul %x, %y : f32[B,8] k(0)\ncolumn_sum.acc @b.grad, %d k(0)");
  const auto all = kernels(m, m.step);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].form, KernelForm::column_reduce);
  EXPECT_EQ(names(m, all[0].reads), (Names{"%x", "%y", "@b.grad"}));
  EXPECT_EQ(names(m, all[0].writes), (Names{"@b.grad"}));
}

TEST(Kernels, RefuseWhatNoKernelCanRun) {
  const auto why = [](std::string_view step) {
    const Module m = module_of(step);
    std::string problem;
    kernels(m, m.step, &problem);
    return problem;
  };
  EXPECT_NE(why("%s = row_sum %x : f32[B,1] k(0)\n%c = column_sum %x : f32[8] k(0)").find("different axes"),
            std::string::npos);
  EXPECT_NE(
      why("%c = column_sum %x : f32[8] k(0)\n%z = add %x, %c : f32[B,8] k(0)").find("inside one kernel"),
      std::string::npos);
  EXPECT_NE(why("%a = relu %x : f32[B,8] k(0)\n%m = matmul %a, @w : f32[B,8] k(0)").find("stands alone"),
            std::string::npos);
  EXPECT_NE(why("%a = relu @w : f32[8,8] k(0)\n%m = relu %x : f32[B,8] k(0)").find("runs over"),
            std::string::npos);
  EXPECT_NE(why("%s = softmax %x : f32[B,8] k(0)").find("expand"), std::string::npos);
}

TEST(LiveRanges, FollowAliases) {
  const Module m = module_of(
      "%a = relu %x : f32[B,8] k(0)\n%v = reshape %a : f32[B,4,2] k(1) {shape = [-1, 4, 2]}\n%n = neg %y : "
      "f32[B,8] k(2)\n"
      "%z = relu %v : f32[B,4,2] k(3)\n%q = relu %z : f32[B,4,2] k(4)\n");
  const auto all = kernels(m, m.step);
  ASSERT_EQ(all.size(), 5U);
  auto ranges = live_ranges(m, m.step, all);
  const auto range = [&](std::string_view name) {
    for (const LiveRange& r : ranges) {
      if (m.step[r.value].name == name) return std::tuple(r.first, r.last, r.bytes);
    }
    return std::tuple(-1, -1, int64_t{-1});
  };
  EXPECT_EQ(range("x"), std::tuple(0, 0, int64_t{128}));
  EXPECT_EQ(range("a"), std::tuple(0, 3, int64_t{128}));  // through its reshape
  EXPECT_EQ(range("v"), std::tuple(-1, -1, int64_t{-1}));
  EXPECT_EQ(range("y"), std::tuple(0, 2, int64_t{128}));
  // In another order: the third kernel runs with the first, the reshape never.
  ranges = live_ranges(m, m.step, all, {0, -1, 0, 1, 2});
  EXPECT_EQ(range("x"), std::tuple(0, 0, int64_t{128}));
  EXPECT_EQ(range("a"), std::tuple(0, 1, int64_t{128}));
  EXPECT_EQ(range("y"), std::tuple(0, 0, int64_t{128}));
  EXPECT_EQ(range("z"), std::tuple(1, 2, int64_t{128}));
}

}  // namespace
}  // namespace gacc::ir
