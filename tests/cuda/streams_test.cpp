// A graph on two streams against the same launches on one, in the emulator: the same bits in every buffer and
// no report, by both engines of products.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/emulated_steps.h"

namespace gacc::test {
namespace {

// A small GPT.
std::string model(const std::string& compute) {
  return R"([model]
name = "m"
seed = 3
[inputs.x]
shape = [16]
dtype = "i32"
[inputs.y]
shape = [16]
dtype = "i32"
[[layers]]
type = "embedding"
vocab = 32
features = 32
[[layers]]
type = "position_embedding"
[[layers]]
type = "sequential"
name = "h"
repeat = 2
[[layers.layers]]
type = "residual"
name = "mix"
[[layers.layers.layers]]
type = "layer_norm"
[[layers.layers.layers]]
type = "attention"
heads = 2
causal = true
[[layers.layers]]
type = "residual"
name = "mlp"
[[layers.layers.layers]]
type = "layer_norm"
[[layers.layers.layers]]
type = "linear"
features = 128
activation = "gelu_tanh"
[[layers.layers.layers]]
type = "linear"
name = "down"
features = 32
[[layers]]
type = "layer_norm"
[[layers]]
type = "linear"
name = "head"
features = 32
[loss]
type = "cross_entropy"
target = "y"
[optimizer]
type = "adamw"
[train]
micro_batch = 8
accumulate = 2
[launch]
mode = "graph"
[precision]
compute = ")" +
         compute + "\"\n";
}

class Streams : public EmulatedSteps {};

TEST_F(Streams, HaveTheBitsOfOne) {
  for (const std::string compute : {"f32", "f16"}) {
    const ir::Module module = planned(model(compute));
    const Artifact one = artifact_of(module, true, "sm_80", false), two = artifact_of(module, true);
    const auto aside = [](const PlanLaunch& launch) { return launch.stream == 1; };
    EXPECT_TRUE(std::ranges::none_of(program(one, "step").launches, aside));
    EXPECT_GT(std::ranges::count_if(program(two, "step").launches, aside), 10) << compute;
    for (const GemmChoice engine : {GemmChoice::builtin, GemmChoice::cublas}) {
      options_.gemm = engine;
      EXPECT_TRUE(run(one) == run(two)) << compute;
    }
  }
}

}  // namespace
}  // namespace gacc::test
