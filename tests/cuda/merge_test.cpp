// Merged kernels against the launches they stand for, in the emulator: the same bits in every buffer, and no
// report.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/artifact_plan.h"
#include "codegen/merge_plan.h"
#include "codegen/plan_writer.h"
#include "frontend/frontend.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "runtime/cuda/cuda_device.h"

namespace gacc::test {
namespace {

// Two layers whose parameters have rows of 4 and of other lengths, one large enough for a norm in parts.
std::string model(const std::string& optimizer, const std::string& more = "") {
  return R"([model]
name = "m"
seed = 3
[inputs.x]
shape = [40]
[inputs.y]
dtype = "i32"
range = 7
[[layers]]
type = "linear"
name = "a"
features = 260
activation = "gelu"
[[layers]]
type = "layer_norm"
[[layers]]
type = "linear"
name = "b"
features = 7
[loss]
type = "cross_entropy"
target = "y"
[optimizer]
)" + optimizer +
         R"(
[train]
micro_batch = 8
accumulate = 2
)" + more;
}

ir::Module planned(const std::string& text) {
  Diag diag("m.toml", text);
  std::optional<ir::Module> module = compile_model(text, "m.toml", {}, diag);
  EXPECT_TRUE(module && !diag.failed()) << diag.render();
  if (!module) return {};
  EXPECT_TRUE(passes::run_pipeline(*module, {}, diag)) << diag.render();
  return std::move(*module);
}

// The artifact with all launches as they are planned (`merged` false), or as gaccc merges them.
Artifact artifact_of(const ir::Module& module, bool merged) {
  Artifact artifact;
  artifact.plan = write_plan(module, {});
  ir::Module as = module;
  if (!merged) as.phase = ir::Phase::fused;  // code is then made for each kernel alone
  Diag diag;
  const std::optional<codegen::DeviceCode> code = codegen::emit_nvptx(as, "sm_80", diag);
  EXPECT_TRUE(code) << diag.render();
  std::string problem;
  EXPECT_TRUE(code && add_programs(as, *code, artifact.plan, problem)) << problem;
  artifact.ir = ir::print(module);
  if (code) artifact.ptx = code->ptx;
  return artifact;
}

const PlanProgram& program(const Artifact& artifact, std::string_view name) {
  for (const PlanProgram& one : artifact.plan.programs)
    if (one.name == name) return one;
  return artifact.plan.programs.front();
}

class Merge : public testing::Test {
 protected:
  void SetUp() override {
    options_.driver = GACC_EMULATOR;
    options_.emulated = true;
    if (access(GACC_EMULATOR, F_OK) != 0) GTEST_SKIP() << GACC_EMULATOR << " is not built";
  }

  // The bytes of all buffers after two windows, the second with a micro-batch of 5.
  std::vector<std::byte> run(const Artifact& artifact) {
    std::unique_ptr<Device> device;
    EXPECT_EQ(cuda::open_device(options_, artifact, device).text(), "");
    if (!device) return {};
    EXPECT_EQ(device->load(artifact).text(), "");
    const Plan& plan = artifact.plan;
    const auto write = [&](std::string_view name, auto value) {
      EXPECT_EQ(device->write(plan.find(name)->offset, std::as_bytes(std::span(&value, 1))).text(), "");
    };
    write("lr", 0.01F);
    write("seed.low", 3);
    EXPECT_EQ(device->run(Program::init, 8).text(), "");
    int64_t number = 0;
    for (const int64_t batch : {8, 8, 8, 5}) {
      std::vector<float> x(static_cast<size_t>(batch * 40));
      std::vector<int32_t> y(static_cast<size_t>(batch));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7 + number) % 23) / 8 - 1.25F;
      for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int32_t>((i * 3 + number) % 7);
      EXPECT_EQ(device->write(plan.inputs[0].step_offset, std::as_bytes(std::span(x))).text(), "");
      EXPECT_EQ(device->write(plan.inputs[1].step_offset, std::as_bytes(std::span(y))).text(), "");
      EXPECT_EQ(device->run(Program::step, batch).text(), "");
      if (++number % 2 == 0) {
        EXPECT_EQ(device->run(Program::update, 8).text(), "");
      }
    }
    std::vector<std::byte> all;
    for (const PlanBuffer& buffer : plan.buffers) {
      std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
      EXPECT_EQ(device->read(buffer.offset, bytes).text(), "") << buffer.name;
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    std::string reports;
    EXPECT_EQ(device->finish(reports).text(), "");
    EXPECT_EQ(reports, "");
    return all;
  }

  cuda::Options options_;
};

TEST_F(Merge, UpdateHasTheBitsOfItsLaunches) {
  for (const char* optimizer : {"type = \"adamw\"", "type = \"lamb\"", "type = \"sgd\"\nmomentum = 0.9"}) {
    const ir::Module module = planned(model(optimizer, "clip_norm = 0.5\n[launch]\nmode = \"graph\"\n"));
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
      const ir::Module module = planned(model(optimizer, more + "[launch]\nmode = \"" + mode + "\"\n"));
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
  const ir::Module module = planned(text + "[launch]\nmode = \"persistent\"\n");
  Artifact merged = artifact_of(module, true);
  ASSERT_TRUE(program(merged, "step").persistent);
  EXPECT_TRUE(program(merged, "step").persistent->cooperative);
  EXPECT_EQ(merged.plan.kernels_per_launch, 1);
  const std::vector<std::byte> expected = run(artifact_of(module, false));
  EXPECT_TRUE(expected == run(merged));
  // What the plan says is what a reader gets back.
  Plan again;
  EXPECT_EQ(from_json(to_json(merged.plan), again).text(), "");
  EXPECT_TRUE(to_json(again) == to_json(merged.plan));
  // "auto" takes it for so small a step.
  EXPECT_TRUE(codegen::launch_mode(planned(text)).persistent);
  EXPECT_FALSE(codegen::launch_mode(planned(text)).required);
}

TEST_F(Merge, APersistentStepThatCannotBeIsAGraphUnlessInsistedOn) {
  options_.gemm = GemmChoice::builtin;
  Artifact artifact = artifact_of(planned(model("type = \"sgd\"")), true);
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
  const ir::Module module = planned(model("type = \"adam\""));
  std::string problem;
  const auto program = codegen::make_program(module, codegen::Purpose::device, problem);
  ASSERT_TRUE(program) << problem;
  const std::vector<int> levels =
      codegen::launch_levels(module, module.update, program->calls(ir::RegionKind::update));
  EXPECT_EQ(*std::max_element(levels.begin(), levels.end()), 3);  // norms, sums of parts, scalars, adam
  EXPECT_EQ(std::count(levels.begin(), levels.end(), 0), 6);      // one for each parameter
  EXPECT_EQ(std::count(levels.begin(), levels.end(), 3), 6);
}

}  // namespace
}  // namespace gacc::test
