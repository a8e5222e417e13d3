// Gradients against central differences, and accumulation against the one big batch.
#include "ir/builder.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;

double loss_of(const Module& module, const Tensors& inputs, State state) {
  const auto values = evaluate(module, RegionKind::step, inputs.begin()->second.shape.front(), inputs, state);
  return values.at("loss").data[0];
}

TEST(Gradient, AgreesWithCentralDifferences) {
  for (const std::string& text : models()) {
    const Module forward = parse(text), module = compiled(text, "autodiff");
    const Tensors inputs = random_inputs(forward, RegionKind::step, 4, 21, true);
    const State state = random_state(forward, 22);
    State copy = state;
    const auto values = evaluate(module, RegionKind::step, 4, inputs, copy);
    int checked = 0;
    for (const Yield& yield : module.step.yields) {
      if (yield.role != YieldRole::grad) continue;
      const std::string& name = module[yield.of].name;
      const Tensor& gradient = values.at(module.step[*as_value(yield.what)].name);
      for (size_t i = 0; i < gradient.data.size(); ++i) {
        const double step = 1e-5;
        State up = state, down = state;
        up.buffers[name].data[i] += step;
        down.buffers[name].data[i] -= step;
        const double expected = (loss_of(forward, inputs, up) - loss_of(forward, inputs, down)) / (2 * step);
        EXPECT_NEAR(gradient.data[i], expected, 1e-6 * (1 + std::abs(expected)))
            << module.name << ": @" << name << "[" << i << "]";
        ++checked;
      }
    }
    EXPECT_GT(checked, 15);
  }
}

TEST(Gradient, UnreachedAndFrozenParametersHaveNone) {
  for (const Yield& yield : compiled(tied(), "autodiff").step.yields)
    EXPECT_NE(yield.of.index, 1) << "@unused";
  const Module module = compiled(residual(), "accumulate");
  EXPECT_FALSE(module.find_buffer("fixed.grad"));
  EXPECT_TRUE(module.find_buffer("fc.weight.grad"));
}

// K ragged micro-batches leave in the accumulators what one batch of all samples leaves.
TEST(Gradient, RaggedMicroBatchesAddUpToTheBigBatch) {
  for (const std::string& text : models()) {
    const Module module = compiled(text, "all");
    const Tensors all = random_inputs(module, RegionKind::step, 8, 31, true);
    const State start = random_state(module, 32);
    State big = start;
    evaluate(module, RegionKind::step, 8, all, big);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{0, 3, 6, 8}, {0, 1, 8}, {0, 4, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
      State parts = start;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        evaluate(module, RegionKind::step, cuts[i + 1] - cuts[i], rows(all, cuts[i], cuts[i + 1]), parts);
      }
      for (const Buffer& buffer : module.buffers) {
        // What the second moment "micro" sums is of the launches, and differs by its nature.
        const bool micro = buffer.name.ends_with(".grad2") || buffer.name == "window.launches";
        if (buffer.kind == BufferKind::accum && !micro) {
          EXPECT_LT(largest_difference(big.buffers[buffer.name], parts.buffers[buffer.name]), 1e-12)
              << "@" << buffer.name;
        }
      }
    }
  }
}

TEST(Gradient, WeightGradientsAccumulateInsideTheProduct) {
  const Module module = compiled(mlp(), "accumulate");
  int products = 0;
  for (const Op& op : module.step.ops) products += op.info->name == "matmul.acc" ? 1 : 0;
  EXPECT_EQ(products, 2);
}

}  // namespace
}  // namespace gacc::test
