// Infinities, NaN, ignored rows and ties: where a shortcut would show.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::map<std::string, Tensor>;

// One row in, through the module and, for composites, also through their expansion.
std::vector<double> row(const std::string& ops, const std::string& result, std::vector<double> x,
                        double target = 0, bool expand = false) {
  const auto columns = static_cast<int64_t>(x.size());
  Module module = parse_module(fmt::format("eval(%x : f32[B,{}], %k : i32[B,1]) {{ {} }}", columns, ops));
  if (expand) {
    const Op op = module.eval.ops.front();
    module.eval.ops.clear();
    Diag diag;
    Builder builder(module, module.eval, diag);
    op.info->expand(builder, op);
    EXPECT_FALSE(diag.failed());
  }
  State state;
  return evaluate(module, RegionKind::eval, 1,
                  {{"x", {{1, columns}, std::move(x)}}, {"k", {{1, 1}, {target}}}}, state)
      .at(result)
      .data;
}

TEST(Special, NanPassesMaxima) {
  std::vector<double> y = row("%y = relu %x : f32[B,3]", "y", {kNan, -kInf, kInf});
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], kInf);
  y = row("%y = maximum %x, 1.0 : f32[B,2]", "y", {kNan, -kInf});
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 1);
  EXPECT_TRUE(std::isnan(row("%y = maximum 1.0, %x : f32[B,1]", "y", {kNan})[0]));
  EXPECT_TRUE(std::isnan(row("%y = leaky_relu %x : f32[B,1]", "y", {kNan})[0]));
  EXPECT_TRUE(std::isnan(row("%y = row_max %x : f32[B,1]", "y", {1, kNan, 2})[0]));
  EXPECT_TRUE(std::isnan(row("%y = row_min %x : f32[B,1]", "y", {1, 2, kNan})[0]));
}

// A gradient that came in stays visible where the value was NaN, or a finite test would miss it.
TEST(Special, DerivativesAtTheKinks) {
  const std::vector<double> relu = row("%y = relu.grad %x, 2.0 : f32[B,4]", "y", {kNan, 0, -0.0, 1});
  EXPECT_EQ(relu, (std::vector<double>{2, 0, 0, 2}));
  EXPECT_EQ(row("%y = abs.grad %x, 2.0 : f32[B,3]", "y", {0, -1, 1}), (std::vector<double>{0, -2, 2}));
  EXPECT_EQ(row("%y = leaky_relu.grad %x, 2.0 : f32[B,3] {slope = 0.5}", "y", {0, -1, 1}),
            (std::vector<double>{1, 1, 2}));
}

TEST(Special, LargeArgumentsDoNotOverflow) {
  EXPECT_EQ(row("%y = sigmoid %x : f32[B,4]", "y", {-1000, 1000, -kInf, kInf}),
            (std::vector<double>{0, 1, 0, 1}));
  EXPECT_EQ(row("%y = silu %x : f32[B,2]", "y", {-1000, 1000}), (std::vector<double>{0, 1000}));
  EXPECT_EQ(row("%y = bce_with_logits %x, 1.0 : f32[B,2]", "y", {-1000, 1000}),
            (std::vector<double>{1000, 0}));
  // exp(-40) to full relative precision: log(1 + e) alone would give 0
  EXPECT_NEAR(row("%y = bce_with_logits %x, 0.0 : f32[B,1]", "y", {-40})[0] / std::exp(-40.0), 1, 1e-14);
  for (const bool expand : {false, true}) {
    EXPECT_EQ(row("%y = softmax %x : f32[B,2]", "y", {1e300, -1e300}, 0, expand),
              (std::vector<double>{1, 0}));
    EXPECT_EQ(row("%y = log_softmax %x : f32[B,2]", "y", {1e6, -1e6}, 0, expand),
              (std::vector<double>{0, -2e6}));
  }
}

TEST(Special, CrossEntropyOfInfiniteLogits) {
  const std::string op = "%l, %m, %s, %c = cross_entropy %x, %k : f32[B,1], f32[B,1], f32[B,1], i32[B,1]";
  for (const bool expand : {false, true}) {
    // A class ruled out costs nothing unless it is the target; with smoothing every class costs.
    EXPECT_NEAR(row(op, "l", {1, -kInf, 1}, 0, expand)[0], std::log(2.0), 1e-15);
    EXPECT_EQ(row(op, "l", {1, -kInf, 1}, 1, expand)[0], kInf);
    EXPECT_EQ(row(op + " {label_smoothing = 0.1}", "l", {1, -kInf, 1}, 0, expand)[0], kInf);
    EXPECT_TRUE(std::isnan(row(op, "l", {1, kInf}, 1, expand)[0]));
    EXPECT_TRUE(std::isnan(row(op, "l", {1, kNan}, 0, expand)[0]));
    // An ignored row is 0 whatever it holds, and its target may be out of range.
    EXPECT_EQ(row(op, "l", {kNan, kInf}, -100, expand)[0], 0);
    EXPECT_EQ(row(op, "c", {kNan, kInf}, -100, expand)[0], 0);
    EXPECT_EQ(row(op + " {label_smoothing = 0.1}", "l", {kNan, kInf}, -100, expand)[0], 0);
  }
  EXPECT_EQ(row("%g = cross_entropy.grad %x, 1.0, 0.0, %k, 1.0 : f32[B,2]", "g", {kNan, kInf}, -100),
            (std::vector<double>{0, 0}));
}

TEST(Special, ArgmaxIsTheFirst) {
  const std::string op = "%y = row_argmax %x : i32[B,1]";
  for (const bool expand : {false, true}) {
    EXPECT_EQ(row(op, "y", {2, 2, 2}, 0, expand)[0], 0);
    EXPECT_EQ(row(op, "y", {1, 3, 3}, 0, expand)[0], 1);
    EXPECT_EQ(row(op, "y", {-kInf, -kInf, -1}, 0, expand)[0], 2);
    EXPECT_EQ(row(op, "y", {-kInf, -kInf}, 0, expand)[0], 0);
    EXPECT_EQ(row(op, "y", {1, kNan, 3}, 0, expand)[0], 3);
  }
}

// With one class the column is the constant 0: the op may run once a row of a wider kernel.
TEST(Special, OneColumnNeedsNoIndex) {
  const Module module = parse_module("eval(%x : f32[B,1]) { %c = column %x : i32[B,1] }");
  for (const Op& op : module.eval.ops) {
    for (const ScalarNode& node : record(OpView{module, module.eval, op}).nodes)
      EXPECT_NE(node.op, ScalarOp::column);
  }
  State state;
  const Values values = evaluate(module, RegionKind::eval, 2, {{"x", {{2, 1}, {5, 6}}}}, state);
  EXPECT_EQ(values.at("c").data, (std::vector<double>{0, 0}));
}

TEST(Special, FiniteTestSeesEverything) {
  EXPECT_EQ(row("%y = is_finite %x : i32[B,4]", "y", {1e308, kInf, -kInf, kNan}),
            (std::vector<double>{1, 0, 0, 0}));
  EXPECT_EQ(row("%y = not_equal %x, %x : i32[B,2]", "y", {1, kNan}), (std::vector<double>{0, 1}));
  EXPECT_EQ(row("%y = equal %x, %x : i32[B,2]", "y", {1, kNan}), (std::vector<double>{1, 0}));
}

TEST(Special, EqualElementsShareTheGradient) {
  Module module = parse_module(
      "eval(%x : f32[B,4], %y : f32[B,4], %d : f32[B,1]) { %m = row_max %x : f32[B,1]\n%n = maximum %x, %y : "
      "f32[B,4] }");
  Diag diag;
  Builder builder(module, module.eval, diag);
  const Op reduce = module.eval.ops[0], pair = module.eval.ops[1];
  GradBuilder first(builder, reduce, {Operand(*module.eval.find("d"))});
  ASSERT_TRUE(first.run());
  GradBuilder second(builder, pair, {Operand(*module.eval.find("x"))});  // any value of the shape
  ASSERT_TRUE(second.run());
  State state;
  const Values values =
      evaluate(module, RegionKind::eval, 1,
               {{"x", {{1, 4}, {1, 5, 5, 2}}}, {"y", {{1, 4}, {1, 6, 4, 2}}}, {"d", {{1, 1}, {8}}}}, state);
  const auto of = [&](const GradBuilder& g, size_t i) {
    return values.at(module.eval[*as_value(*g.contributions()[i])].name).data;
  };
  EXPECT_EQ(of(first, 0), (std::vector<double>{0, 4, 4, 0}));
  EXPECT_EQ(of(second, 0), (std::vector<double>{0.5, 0, 5, 1}));
  EXPECT_EQ(of(second, 1), (std::vector<double>{0.5, 5, 0, 1}));
}

}  // namespace
}  // namespace gacc::ir
