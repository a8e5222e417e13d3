// Compiled models in the emulator, launch by launch as planned or as gaccc merges them: what the tests of
// merged kernels and of epilogues compare.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/device_code.h"
#include "compiler/plan/plan_of.h"
#include "ir/text/text.h"
#include "passes/pipeline.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/half.h"
#include "tests/compiler/compiled.h"

namespace gacc::test {

const std::string kTwoLaunches = "micro_batch = 8\naccumulate = 2\n";

// Returns a scheduled module as it was planned, so that other passes can schedule it.
inline ir::Module unscheduled(ir::Module module) {
  module.phase = ir::Phase::planned;
  module.target.clear();
  for (const ir::RegionKind kind : ir::all_regions) module.region(kind).schedule.reset();
  return module;
}

// The artifact with all launches as they are planned (`merged` false), or as gaccc merges them; on one stream
// or as gaccc has them on two.
inline Artifact artifact_of(const ir::Module& module, bool merged, std::string_view target = "sm_80",
                            bool streams = true) {
  Artifact artifact;
  ir::Module as = unscheduled(module);
  passes::PipelineOptions options;
  options.options.target = target;
  options.passes = {"select"};
  if (merged) options.passes = {"select", "epilogues", "levels", "merge", "persistent"};
  if (merged && streams) options.passes.emplace_back("streams");
  if (merged) options.passes.emplace_back("workspaces");
  Diag diag;
  EXPECT_TRUE(passes::run_pipeline(as, options, diag)) << diag.render();
  const std::optional<codegen::DeviceCode> code = codegen::emit_nvptx(as, target, diag);
  EXPECT_TRUE(code) << diag.render();
  if (!code) return artifact;
  artifact.plan = plan_of(as);
  artifact.plan.programs = code->programs;
  artifact.ir = ir::print(as);
  artifact.ptx = code->ptx;
  return artifact;
}

inline const PlanProgram& program(const Artifact& artifact, std::string_view name) {
  for (const PlanProgram& one : artifact.plan.programs)
    if (one.name == name) return one;
  return artifact.plan.programs.front();
}

class EmulatedSteps : public testing::Test {
 protected:
  void SetUp() override {
    options_.driver = GACC_EMULATOR;
    options_.emulated = true;
    if (access(GACC_EMULATOR, F_OK) != 0) GTEST_SKIP() << GACC_EMULATOR << " is not built";
  }

  // The bytes of all buffers after two windows, the second with a micro-batch of 5, and an evaluation. The
  // micro-batch is 8.
  std::vector<std::byte> run(const Artifact& artifact) { return run(artifact, {8, 8, 8, 5}, 5); }
  // After an evaluation of one sample alone.
  std::vector<std::byte> evaluate(const Artifact& artifact) { return run(artifact, {}, 1); }

 private:
  std::vector<std::byte> run(const Artifact& artifact, const std::vector<int64_t>& batches,
                             int64_t evaluated) {
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
    for (const int64_t batch : batches) {
      write_inputs(*device, plan, batch, number);
      EXPECT_EQ(device->run(Program::step, batch).text(), "");
      if (++number % 2 == 0) {
        EXPECT_EQ(device->run(Program::update, 8).text(), "");
      }
    }
    write_inputs(*device, plan, evaluated, number, /*eval=*/true);
    EXPECT_EQ(device->run(Program::eval, evaluated).text(), "");
    return buffers(*device, plan);
  }

  std::vector<std::byte> buffers(Device& device, const Plan& plan) {
    std::vector<std::byte> all;
    for (const PlanBuffer& buffer : plan.buffers) {
      std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
      EXPECT_EQ(device.read(buffer.offset, bytes).text(), "") << buffer.name;
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    const Status finished = device.finish(reports_);
    if (!faulty_) {
      EXPECT_EQ(finished.text(), "");
      EXPECT_EQ(reports_, "");
    }
    return all;
  }

 protected:
  // Eighths between -1.25 and 1.5, or classes.
  static void write_inputs(Device& device, const Plan& plan, int64_t batch, int64_t number,
                           bool eval = false) {
    for (const PlanInput& input : plan.inputs) {
      size_t count = static_cast<size_t>(batch);
      for (const int64_t extent : input.shape) count *= static_cast<size_t>(extent);
      const int64_t offset = eval ? input.eval_offset : input.step_offset;
      const auto n = static_cast<size_t>(number);
      if (input.dtype == DType::i32) {
        std::vector<int32_t> values(count);
        for (size_t i = 0; i < count; ++i)
          values[i] = static_cast<int32_t>((i * 3 + n) % static_cast<size_t>(input.range.value_or(1)));
        EXPECT_EQ(device.write(offset, std::as_bytes(std::span(values))).text(), "");
      } else {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7 + n) % 23) / 8 - 1.25F;
        std::span<const std::byte> bytes = std::as_bytes(std::span(values));
        std::vector<uint16_t> halves;
        if (input.stored) {
          round_to_half(bytes, half_type(*input.stored), halves);
          bytes = std::as_bytes(std::span(halves));
        }
        EXPECT_EQ(device.write(offset, bytes).text(), "");
      }
    }
  }

  cuda::CudaOptions options_;
  bool faulty_ = false;  // reports are expected
  std::string reports_;
};

}  // namespace gacc::test
