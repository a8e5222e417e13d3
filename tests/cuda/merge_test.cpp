// Merged kernels against the launches they stand for, in the emulator: the same bits in every buffer, and no
// report.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "passes/schedule/launches.h"
#include "tests/cuda/emulated_steps.h"

namespace gacc::test {
namespace {

// Two layers whose parameters have rows of 4 and of other lengths, one large enough for a norm in parts.
std::string model(const std::string& optimizer, const std::string& more = "") {
  const std::string layers =
      linear(260, "name = \"a\"\nactivation = \"gelu\"") + layer("layer_norm") + linear(7, "name = \"b\"");
  return classifier("40", layers, optimizer, kTwoLaunches + more);
}

using Merge = EmulatedSteps;

TEST_F(Merge, UpdateHasTheBitsOfItsLaunches) {
  for (const char* optimizer : {"type = \"adamw\"", "type = \"lamb\"", "type = \"sgd\"\nmomentum = 0.9"}) {
    const ir::Module module = compiled(model(optimizer, "clip_norm = 0.5\n[launch]\nmode = \"graph\"\n"));
    const Artifact apart = artifact_of(module, false), merged = artifact_of(module, true);
    // Norms, their sums, the scalars, the optimizer; lamb has steps of its own, which take turns in the
    // arena.
    const size_t count = program(merged, "update").launches.size();
    EXPECT_LT(count, program(apart, "update").launches.size());
    if (std::string(optimizer).find("lamb") == std::string::npos) {
      EXPECT_LE(count, 5U) << optimizer;  // momentum reads the count of updates, which is advanced last
    }
    EXPECT_FALSE(program(merged, "step").persistent);
    EXPECT_FALSE(program(merged, "update").persistent);
    EXPECT_TRUE(run(apart) == run(merged)) << optimizer;
  }
}

// With launch.mode "auto" and "persistent" the whole update is one cooperative kernel, whatever the
// optimizer.
TEST_F(Merge, TheUpdateIsOneKernelWithTheBitsOfItsLaunches) {
  const std::string half = "clip_norm = 0.5\n[precision]\ncompute = \"f16\"\nscale_initial = 64\n";
  const struct {
    const char* optimizer;
    std::string more;
  } cases[] = {{"type = \"adamw\"", half},
               {"type = \"adam\"\nsecond_moment = \"micro\"", "clip_norm = 0.5\n"},
               {"type = \"lamb\"", ""},
               {"type = \"lion\"", ""},
               {"type = \"sgd\"\nmomentum = 0.9", "[schedule]\ntype = \"cosine\"\ntotal = 5\n"}};
  for (const auto& [optimizer, more] : cases) {
    for (const std::string mode : {"auto", "persistent"}) {
      if (mode == "persistent" && more != half) continue;  // "auto" takes the same kernel
      const ir::Module module = compiled(model(optimizer, more + "[launch]\nmode = \"" + mode + "\"\n"));
      const Artifact merged = artifact_of(module, true);
      ASSERT_TRUE(program(merged, "update").persistent) << optimizer;
      EXPECT_TRUE(program(merged, "update").persistent->cooperative);
      EXPECT_FALSE(program(merged, "update").persistent_required);
      EXPECT_TRUE(run(artifact_of(module, false)) == run(merged)) << optimizer << " " << mode;
    }
  }
}

TEST_F(Merge, PersistentStepHasTheBitsOfItsLaunches) {
  const std::string text = model("type = \"adam\"");
  const ir::Module module = compiled(text + "[launch]\nmode = \"persistent\"\n");
  Artifact merged = artifact_of(module, true);
  ASSERT_TRUE(program(merged, "step").persistent);
  EXPECT_TRUE(program(merged, "step").persistent->cooperative);
  EXPECT_EQ(merged.plan.kernels_per_launch, 1);
  const std::vector<std::byte> expected = run(artifact_of(module, false));
  EXPECT_TRUE(expected == run(merged));
  // "auto" takes it for so small a step.
  EXPECT_EQ(*compiled(text).results.launch_step, "persistent");
}

TEST_F(Merge, APersistentStepThatCannotBeIsAGraphUnlessInsistedOn) {
  options_.gemm = GemmChoice::builtin;
  Artifact artifact = artifact_of(compiled(model("type = \"sgd\"")), true);
  for (PlanProgram& one : artifact.plan.programs)
    if (one.persistent) one.persistent->block = 2048;  // no GPU has such blocks: nor has the update's
  std::unique_ptr<Device> device;
  ASSERT_EQ(cuda::open_device(options_, artifact, device).text(), "");
  EXPECT_EQ(device->load(artifact).text(), "");
  EXPECT_EQ(device->run(Program::init, 8).text(), "");
  for (PlanProgram& one : artifact.plan.programs) one.persistent_required = one.persistent.has_value();
  ASSERT_EQ(cuda::open_device(options_, artifact, device).text(), "");
  const std::string text = device->load(artifact).text();
  EXPECT_NE(text.find("the step cannot be one kernel"), std::string::npos) << text;
}

TEST(Levels, IndependentLaunchesShareOne) {
  const ir::Module module = compiled(model("type = \"adam\""));
  const std::vector<std::vector<const ir::CallSite*>> levels = ir::by_level(*module.update.schedule);
  ASSERT_EQ(levels.size(), 4U);     // norms, sums of parts, scalars, adam
  EXPECT_EQ(levels[0].size(), 6U);  // one for each parameter
  EXPECT_EQ(levels[3].size(), 6U);
}

// The phases of a step of three layers follow from what reads what: its products in series with the loss behind
// them, down and up again. Neither memory that is used again, nor a gradient of an activation or a bias, nor half
// precision adds one.
TEST(Levels, AStepOfLayersWaitsForDataAlone) {
  for (const std::string activation : {"relu", "tanh"}) {
    for (const bool half : {false, true}) {
      std::string layers;
      for (const int features : {72, 40}) layers += linear(features, "activation = \"" + activation + "\"");
      const std::string train =
          std::string("micro_batch = 32\n") + (half ? "[precision]\ncompute = \"f16\"\n" : "");
      const ir::Module module = compiled(classifier("600", layers + linear(7), "type = \"adam\"", train));
      ASSERT_TRUE(module.step.schedule->persistent) << activation;
      EXPECT_EQ(ir::by_level(*module.step.schedule).size(), 3U + 1 + 2 + 1) << activation;
    }
  }
}

}  // namespace
}  // namespace gacc::test
