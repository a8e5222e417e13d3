// The gradient of every differentiable op against central differences in double, over the op table: with
// L = sum of w * y over all results y and fixed random w, dL/dx by the table must be (L(x+h) - L(x-h)) / 2h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/text/text.h"
#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

using Values = std::map<std::string, Tensor>;

// The example with the op's gradient behind it; dy are further inputs. Empty where the op says it has none.
struct Differentiated {
  Module module;
  std::vector<std::optional<Operand>> d_operands;
  std::vector<ValueId> d_results;  // inputs, one for each result in `results`
  std::vector<size_t> results;
};

std::optional<Differentiated> differentiate(const Example& example, bool all_results, Diag& diag) {
  Differentiated made{.module = example.module, .d_operands = {}, .d_results = {}, .results = {}};
  Region& region = made.module.eval;
  const Op op = region.ops.front();
  std::vector<std::optional<Operand>> d_results(op.results.size());
  for (size_t i = 0; i < op.results.size() && (all_results || i == 0); ++i) {
    const Type type = region[op.results[i]].type;
    if (!is_float(type.dtype)) continue;
    const ValueId dy = region.add_value(fmt::format("dy{}", i), type);
    region.inputs.push_back(dy);
    d_results[i] = dy;
    made.d_results.push_back(dy);
    made.results.push_back(i);
  }
  made.d_operands.resize(op.operands.size());
  if (made.results.empty()) return made;  // integers only: autodiff does not come here
  Builder builder(made.module, region, diag);
  GradBuilder gradient(builder, op, d_results);
  std::vector<bool> wanted;
  for (const Operand& operand : op.operands)
    wanted.push_back(as_value(operand) != nullptr && is_float(builder.type(operand).dtype));
  gradient.want(wanted);
  if (!gradient.run() || diag.failed()) return std::nullopt;
  made.d_operands = gradient.contributions();
  return made;
}

double weighted_sum(const Differentiated& made, const Module& module, int64_t batch, const Values& inputs) {
  State state;
  const Values values = evaluate(module, RegionKind::eval, batch, inputs, state);
  double sum = 0;
  for (size_t i = 0; i < made.results.size(); ++i) {
    const Tensor& y = values.at(fmt::format("y{}", made.results[i]));
    const Tensor& w = inputs.at(fmt::format("dy{}", made.results[i]));
    for (size_t k = 0; k < y.data.size(); ++k) sum += y.data[k] * w.data[k];
  }
  return sum;
}

// Each costs two evaluations: of a large operand's, that many are looked at, evenly spread.
constexpr size_t kMostElements = 1000;

void check(const Example& example, const Differentiated& made, int64_t batch, std::mt19937& random) {
  // Positive inputs where the op has no value elsewhere (log, sqrt).
  Values inputs = random_inputs(made.module, batch, false, random);
  State state;
  if (std::isnan(weighted_sum(made, example.module, batch, inputs)))
    inputs = random_inputs(made.module, batch, true, random);
  const Values values = evaluate(made.module, RegionKind::eval, batch, inputs, state);
  const Region& region = made.module.eval;
  const Op& op = example.op();
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const ValueId* operand = as_value(op.operands[i]);
    if (operand == nullptr || !is_float(region[*operand].type.dtype)) continue;
    if (!made.d_operands[i]) {
      // Nothing flows: right only where all results are integers or the operand gives a shape.
      for (const ValueId result : op.results)
        EXPECT_FALSE(is_float(region[result].type.dtype)) << "operand " << i << " has no gradient";
      continue;
    }
    const Operand d = *made.d_operands[i];
    EXPECT_EQ(operand_type(made.module, region, d), region[*operand].type);
    const Tensor& gradient = values.at(region[*as_value(d)].name);
    const std::string name = region[*operand].name;
    const size_t stride = gradient.data.size() / kMostElements + 1;
    for (size_t k = 0; k < gradient.data.size(); k += stride) {
      constexpr double kStep = 1e-5;  // error h^2 f''' / 6 + epsilon / h, about 1e-10
      Values moved = inputs;
      moved[name].data[k] = inputs[name].data[k] + kStep;
      const double above = weighted_sum(made, example.module, batch, moved);
      moved[name].data[k] = inputs[name].data[k] - kStep;
      const double difference = (above - weighted_sum(made, example.module, batch, moved)) / (2 * kStep);
      EXPECT_NEAR(gradient.data[k], difference, 1e-6 * std::fmax(1, std::fabs(difference)))
          << "operand " << i << ", element " << k;
    }
  }
}

class Gradient : public testing::TestWithParam<const OpInfo*> {};

std::vector<const OpInfo*> differentiable_ops() {
  std::vector<const OpInfo*> ops;
  for (const OpInfo* info : all_ops()) {
    if (info->has_gradient()) ops.push_back(info);
  }
  return ops;
}

INSTANTIATE_TEST_SUITE_P(Ops, Gradient, testing::ValuesIn(differentiable_ops()),
                         [](const auto& info) { return test_name(info.param->name); });

TEST_P(Gradient, IsTheCentralDifference) {
  std::mt19937 random(3);
  int checked = 0;
  for (const Example& example : examples(*GetParam())) {
    if (has_half(example)) continue;  // a rounded result has steps, no derivative
    const auto frozen = [](const Value& value) { return is_blocks(value.type.dtype); };
    if (std::ranges::any_of(example.module.eval.values, frozen)) continue;
    SCOPED_TRACE(example.text);
    Diag diag;
    std::optional<Differentiated> made = differentiate(example, true, diag);
    if (!made) {  // statistics of a norm are handed on, but nothing may depend on them
      Diag first;
      made = differentiate(example, false, first);
    }
    if (!made) {
      ASSERT_TRUE(diag.failed());
      EXPECT_EQ(diag.reports().front().kind, Kind::no_gradient);
      continue;
    }
    ++checked;
    for (const int64_t batch : {1, 3, 4}) check(example, *made, batch, random);
  }
  EXPECT_GT(checked, 0);
}

TEST(GradBuilder, OneOpMayUseAnOperandTwice) {
  Module module = parse_module("eval(%x : f32[B,2], %dy : f32[B,2]) { %y = mul %x, %x : f32[B,2] }");
  Diag diag;
  Builder builder(module, module.eval, diag);
  const Op op = module.eval.ops.front();
  GradBuilder gradient(builder, op, {Operand(*module.eval.find("dy"))});
  ASSERT_TRUE(gradient.run());
  State state;
  const Values values =
      evaluate(module, RegionKind::eval, 1, {{"x", {{1, 2}, {3, 5}}}, {"dy", {{1, 2}, {1, 2}}}}, state);
  EXPECT_EQ(values.at("d.x").data, (std::vector<double>{3, 10}));
  EXPECT_EQ(values.at("d.x.2").data, (std::vector<double>{3, 10}));
}

TEST(GradBuilder, WhatIsNotWantedIsNotMade) {
  Module module =
      parse_module("param @b : f32[2]\neval(%x : f32[B,2], %dy : f32[B,2]) { %y = mul %x, @b : f32[B,2] }");
  Diag diag;
  Builder builder(module, module.eval, diag);
  const Op op = module.eval.ops.front();
  GradBuilder gradient(builder, op, {Operand(*module.eval.find("dy"))});
  gradient.want({false, true});
  ASSERT_TRUE(gradient.run());
  EXPECT_FALSE(gradient.contributions()[0]);
  ASSERT_TRUE(gradient.contributions()[1]);
  ASSERT_EQ(module.eval.ops.size(), 3U);
  EXPECT_EQ(print(module, module.eval, module.eval.ops[1]), "%d.b = mul %dy, %x : f32[B,2]");
  EXPECT_EQ(print(module, module.eval, module.eval.ops[2]), "%d.b.sum = column_sum %d.b : f32[2]");
}

// The seed of the loss is the number 1: a sum's gradient repeats it to the shape of what was summed.
TEST(GradBuilder, ASeedIsRepeated) {
  Module module = parse_module("eval(%x : f32[B,2]) { %y = total_sum %x : f32[] }");
  Diag diag;
  Builder builder(module, module.eval, diag);
  const Op op = module.eval.ops.front();
  GradBuilder gradient(builder, op, {Operand(1.0)});
  ASSERT_TRUE(gradient.run());
  EXPECT_EQ(print(module, module.eval, module.eval.ops[1]),
            "%d.x.all = broadcast 1.0 : f32[B,2] {shape = [-1, 2]}");
}

TEST(GradBuilder, AnOpWithoutGradientSaysSo) {
  Module module = parse_module("eval(%x : f32[B,2]) { %y = row_argmax %x : i32[B,1] }");
  Diag diag;
  Builder builder(module, module.eval, diag);
  const Op op = module.eval.ops.front();
  GradBuilder gradient(builder, op, {std::nullopt});
  EXPECT_FALSE(gradient.run());
  ASSERT_TRUE(diag.failed());
  EXPECT_EQ(diag.reports().front().kind, Kind::no_gradient);
}

}  // namespace
}  // namespace gacc::ir
