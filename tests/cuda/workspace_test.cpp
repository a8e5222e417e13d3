// A product's workspace that lies where something else lives, which no plan of gaccc's has and gacc-exec
// refuses: the emulator says who reads what was destroyed.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/emulated_steps.h"

namespace gacc::test {
namespace {

using Workspaces = EmulatedSteps;

TEST_F(Workspaces, OneOverALiveValueIsReportedWhenThatIsRead) {
  options_.gemm = GemmChoice::cublas;
  const std::string layers = linear(32, "activation = \"tanh\"") + linear(7);
  Artifact artifact = artifact_of(
      compiled(classifier("400", layers, "type = \"sgd\"", "micro_batch = 8\n[launch]\nmode = \"graph\"\n")),
      true);
  std::vector<PlanLaunch>& launches = artifact.plan.programs[1].launches;
  const auto is_product = [](const PlanLaunch& launch) { return launch.kernel.empty(); };
  const auto first = std::find_if(launches.begin(), launches.end(), is_product);
  const auto second = std::find_if(first + 1, launches.end(), is_product);
  ASSERT_NE(second, launches.end());
  // The second product does not read x; the gradient of the first layer's weight does so again, and the
  // update reads that.
  const PlanInput& x = artifact.plan.inputs[0];
  ASSERT_EQ(first->a, x.step_offset);
  ASSERT_NE(second->a, x.step_offset);
  for (const bool wrong : {false, true}) {
    if (wrong) second->workspace = PlanWorkspace{x.step_offset, 8 * 400 * 4};
    std::unique_ptr<Device> device;
    ASSERT_EQ(cuda::open_device(options_, artifact, device).text(), "");
    ASSERT_EQ(device->load(artifact).text(), "");
    EXPECT_EQ(device->run(Program::init, 8).text(), "");
    write_inputs(*device, artifact.plan, 8, 0);
    EXPECT_EQ(device->run(Program::step, 8).text(), "");
    EXPECT_EQ(device->run(Program::update, 8).text(), "");
    std::string reports;
    EXPECT_EQ(device->finish(reports).ok(), !wrong);
    EXPECT_EQ(reports.find("uninitialised") != std::string::npos, wrong) << reports;
  }
}

}  // namespace
}  // namespace gacc::test
