// A graph on two streams against the same launches on one, in the emulator: the same bits in every buffer and
// no report, by both engines of products. And copies of state from the host on streams of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/cuda/emulated_steps.h"

namespace gacc::test {
namespace {

// A small GPT.
std::string model(const std::string& compute) {
  return R"(model = { name = "m", seed = 3 }
inputs.x = { shape = [16], dtype = "i32" }
inputs.y = { shape = [16], dtype = "i32" }
loss = { type = "cross_entropy", target = "y" }
optimizer = { type = "adamw" }
train = { micro_batch = 8, accumulate = 2 }
launch = { mode = "graph" }
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
[precision]
compute = ")" +
         compute + "\"\n";
}

class Streams : public EmulatedSteps {};

TEST_F(Streams, HaveTheBitsOfOne) {
  for (const std::string compute : {"f32", "f16"}) {
    const ir::Module module = compiled(model(compute));
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

std::string hosted(const std::string& budget) {
  return model("bf16") + "[recompute]\npolicy = \"none\"\n[memory]\nhost = \"1MiB\"\nbudget = \"" + budget +
         "\"\n";
}

// The numbers of all buffers are compared by name, for they lie elsewhere.
TEST_F(Streams, OfStateOnTheHostHaveTheBitsOfOne) {
  const ir::Module module = compiled(hosted("1KiB"));
  ASSERT_GT(module.host_bytes, 100'000);
  const Artifact one = artifact_of(module, true, "sm_80", false), three = artifact_of(module, true);
  const std::vector<std::byte> bits = run(three);
  EXPECT_TRUE(run(one) == bits);
  const std::vector<std::byte> none = run(artifact_of(compiled(hosted("1GiB")), true));
  ASSERT_EQ(none.size(), bits.size());
  EXPECT_TRUE(none == bits);
}

// Whatever works with a slot before its copy came in is named, and so is a copy in that overtakes the one out.
TEST_F(Streams, AMissingWaitForACopyIsNamed) {
  Artifact artifact = artifact_of(compiled(hosted("1KiB")), true);
  faulty_ = true;
  size_t kernels = 0, copies = 0;
  for (PlanProgram& update : artifact.plan.programs) {
    if (!update.section) continue;
    for (size_t i = 0; i < update.launches.size() && kernels + copies < 12; ++i) {
      PlanLaunch& launch = update.launches[i];
      const bool in = launch.copy && launch.stream == 1;
      if (launch.after.empty() || launch.stream == 2)
        continue;  // a copy out waits for a kernel, which is done by then
      if (in && update.launches[static_cast<size_t>(launch.after.front())].stream != 2) continue;
      const std::vector<int64_t> right = std::exchange(launch.after, {});
      run(artifact);
      EXPECT_NE(reports_, "") << "launch " << i;
      ++(in ? copies : kernels);
      launch.after = right;
      i += 20;
    }
  }
  EXPECT_GT(kernels, 2U);
  EXPECT_GT(copies, 0U);
}

}  // namespace
}  // namespace gacc::test
