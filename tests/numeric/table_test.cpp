// What holds of every entry of the op table.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ir/cost.h"
#include "tests/numeric/examples.h"

namespace gacc::ir {
namespace {

class Table : public testing::TestWithParam<const OpInfo*> {};

INSTANTIATE_TEST_SUITE_P(Ops, Table, testing::ValuesIn(all_ops()),
                         [](const auto& info) { return test_name(info.param->name); });

TEST_P(Table, EntryIsComplete) {
  const OpInfo& info = *GetParam();
  EXPECT_EQ(find_op(info.name), &info);
  EXPECT_FALSE(info.summary.empty());
  ASSERT_NE(info.infer, nullptr);
  EXPECT_EQ(info.lowering == Lowering::pointwise, info.formula != nullptr);
  EXPECT_EQ(info.lowering == Lowering::composite, info.expand != nullptr);
  const bool by_rule = info.lowering == Lowering::pointwise || info.lowering == Lowering::row_reduce ||
                       info.lowering == Lowering::column_reduce || info.lowering == Lowering::total_reduce;
  EXPECT_EQ(by_rule, info.reference == nullptr);
  EXPECT_TRUE(info.derivative == nullptr || info.gradient == nullptr);
  EXPECT_EQ(info.discards & ~info.writes, 0U);
  EXPECT_TRUE(info.writes == 0 || (info.recompute == Recompute::never && !info.has_gradient()));
}

// A golden shows the op; types are inferred as written there; it runs with one sample, a ragged and a full
// batch.
TEST_P(Table, ExamplesRun) {
  const std::vector<Example> all = examples(*GetParam());
  EXPECT_FALSE(all.empty());
  std::mt19937 random(1);
  for (const Example& example : all) {
    SCOPED_TRACE(example.text);
    Diag diag;
    const OpView view{example.module, example.module.eval, example.op()};
    const auto types = infer_types(view, diag);
    ASSERT_TRUE(types) << diag.render();
    ASSERT_EQ(types->size(), example.op().results.size());
    for (size_t i = 0; i < types->size(); ++i) EXPECT_EQ((*types)[i], view.result(i));
    for (const int64_t batch : {1, 3, 4}) {
      State state = random_state(example.module, random);
      const auto values = evaluate(example.module, RegionKind::eval, batch,
                                   random_inputs(example.module, batch, true, random), state);
      for (const ValueId result : example.op().results) {
        const Value& value = example.module.eval[result];
        const Tensor& tensor = values.at(value.name);
        EXPECT_EQ(static_cast<int64_t>(tensor.data.size()), elements(value.type.shape, batch));
        for (const double x : tensor.data) EXPECT_TRUE(std::isfinite(x));
      }
    }
    const Cost price = cost(view);
    EXPECT_GE(price.flops, 0);
    if (GetParam()->lowering != Lowering::alias) {
      EXPECT_GT(price.bytes, 0);
    }
  }
}

// A composite's expansion gives the results of its reference, under their names and types.
TEST_P(Table, ExpansionIsTheReference) {
  if (GetParam()->expand == nullptr) return;
  std::mt19937 random(2);
  for (const Example& example : examples(*GetParam())) {
    SCOPED_TRACE(example.text);
    Module expanded = example.module;
    const Op op = expanded.eval.ops.front();
    expanded.eval.ops.clear();
    Diag diag;
    Builder builder(expanded, expanded.eval, diag);
    const std::vector<Operand> results = op.info->expand(builder, op);
    ASSERT_FALSE(diag.failed()) << diag.render();
    ASSERT_EQ(results.size(), op.results.size());
    std::set<std::string> names;
    for (const Value& value : expanded.eval.values)
      EXPECT_TRUE(names.insert(value.name).second) << value.name;
    for (const Op& made : expanded.eval.ops) EXPECT_NE(made.info->lowering, Lowering::composite);
    for (const int64_t batch : {1, 3, 4}) {
      const auto inputs = random_inputs(example.module, batch, false, random);
      State state;
      const auto want = evaluate(example.module, RegionKind::eval, batch, inputs, state);
      const auto got = evaluate(expanded, RegionKind::eval, batch, inputs, state);
      for (size_t i = 0; i < results.size(); ++i) {
        const Value& value = expanded.eval[*as_value(results[i])];
        const Value& original = example.module.eval[op.results[i]];
        EXPECT_EQ(value.name, original.name);
        EXPECT_EQ(value.type, original.type);
        const Tensor &a = want.at(original.name), &b = got.at(value.name);
        ASSERT_EQ(a.data.size(), b.data.size());
        for (size_t k = 0; k < a.data.size(); ++k)
          EXPECT_NEAR(a.data[k], b.data[k], 1e-12 * (1 + std::fabs(a.data[k])));
      }
    }
  }
}

// Cost of a product: 2 m n k, at the full micro-batch.
TEST(Cost, ProductsCountMultiplyAndAdd) {
  const Module module = parse_module(
      "set train.micro_batch = 8\nparam @w : f32[5,4]\n"
      "eval(%x : f32[B,2,4]) { %a = matmul %x, @w : f32[B,2,5] {tb}\n %b = relu %a : f32[B,2,5] }");
  const Region& region = module.eval;
  EXPECT_EQ(cost(OpView{module, region, region.ops[0]}).flops, 2 * 16 * 4 * 5);
  EXPECT_EQ(cost(OpView{module, region, region.ops[0]}).bytes, 4 * (64 + 20 + 80));
  EXPECT_EQ(cost(module, region).flops, 2 * 16 * 4 * 5 + 80);
  EXPECT_EQ(cost(module, region).bytes, 4 * (64 + 20 + 80 + 160));
}

}  // namespace
}  // namespace gacc::ir
