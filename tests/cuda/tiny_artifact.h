// The tiny model of tests/runtime/fake_device.h as an artifact for a CUDA device: its plan with programs, and
// the hand-written PTX of tests/cuda/tiny_ptx.h. `tiny_kernel` does on the host what the PTX says, for the
// fake driver.
#pragma once
#include <cmath>

#include "runtime/artifact.h"
#include "runtime/run/train.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/tiny_ptx.h"
#include "tests/runtime/fake_device.h"

namespace gacc::test {

// Buffers and inputs as arguments, in the order of the entries' parameters.
inline Artifact tiny_artifact(int64_t micro_batch, int64_t accumulate, std::string_view tail = "flush") {
  Artifact artifact;
  artifact.plan = tiny_plan(micro_batch, accumulate, tail);
  Plan& plan = artifact.plan;
  const auto address = [&](const char* name) {
    for (const PlanInput& input : plan.inputs)
      if (input.name == name) return PlanArgument{PlanArgument::Kind::address, input.step_offset};
    return PlanArgument{PlanArgument::Kind::address, plan.find(name)->offset};
  };
  const PlanArgument samples{PlanArgument::Kind::extent, 0, 1, true},
      one{PlanArgument::Kind::extent, 0, 1, false};
  const auto add = [&](const char* program, const char* kernel, std::vector<const char*> names,
                       bool with_batch) {
    if (plan.programs.empty() || plan.programs.back().name != program) plan.programs.push_back({program, {}});
    PlanLaunch& launch = plan.programs.back().launches.emplace_back();
    launch.kernel = kernel;
    for (const char* name : names) launch.arguments.push_back(address(name));
    if (with_batch) launch.arguments.push_back(samples);
    launch.block = 32;
    launch.grid = one;  // one block, of which one thread works: sums in a fixed order
    launch.per_block = 32;
  };
  add("init", "tiny_init", {"w", "frozen", "seed.low"}, false);
  add("step", "tiny_sum", {"x", "mark", "loss.sum", "loss.count"}, true);
  add("step", "tiny_gradient", {"x", "mark", "w.grad"}, true);
  add("update", "tiny_update",
      {"w", "w.grad", "loss.sum", "loss.count", "lr", "window.loss", "window.norm", "window.lr", "window.ok",
       "updates", "window.sum", "window.count"},
      false);
  add("eval", "tiny_sum", {"x", "mark", "eval.loss", "eval.count"}, true);
  add("eval", "tiny_positive", {"x", "mark", "eval.accuracy"}, true);
  artifact.ptx = tiny_ptx();
  return artifact;
}

inline void tiny_kernel(const FakeLaunch& launch, void*) {
  const std::vector<uint64_t>& to = launch.arguments;
  const auto real = [&](size_t i) { return reinterpret_cast<float*>(to[i]); };
  const auto integer = [&](size_t i) { return reinterpret_cast<int32_t*>(to[i]); };
  const auto batch = static_cast<int64_t>(to.back());
  if (launch.kernel == "tiny_init") {
    real(0)[0] = 1 + static_cast<float>(*integer(2));
    real(0)[1] = 2;
    *real(1) = 3;
  } else if (launch.kernel == "tiny_sum") {
    for (int64_t i = 0; i < batch; ++i) {
      if (integer(1)[i] == -1) continue;
      *real(2) += real(0)[i];
      *integer(3) += 1;
    }
  } else if (launch.kernel == "tiny_gradient") {
    for (int64_t i = 0; i < batch; ++i) {
      if (integer(1)[i] == -1) continue;
      real(2)[0] += real(0)[i];
      real(2)[1] -= real(0)[i];
    }
  } else if (launch.kernel == "tiny_positive") {
    for (int64_t i = 0; i < batch; ++i) *real(2) += integer(1)[i] != -1 && real(0)[i] > 0;
  } else if (launch.kernel == "tiny_update") {
    const float mean = 1.0f / static_cast<float>(*integer(3)), first = real(1)[0] * mean,
                second = real(1)[1] * mean;
    *real(10) = *real(2);
    *integer(11) = *integer(3);
    *real(5) = *real(2) * mean;
    *real(6) = std::sqrt(first * first + second * second);
    *real(7) = *real(4);
    const bool ok = std::isfinite(*real(6));
    *integer(8) = ok;
    if (!ok) return;
    real(0)[0] -= *real(4) * first;
    real(0)[1] -= *real(4) * second;
    *integer(9) += 1;
    real(1)[0] = real(1)[1] = *real(2) = 0;
    *integer(3) = 0;
  }
}

// Numbers that f32 holds exactly.
inline std::vector<float> numbers(int count) {
  std::vector<float> x;
  for (int i = 0; i < count; ++i) x.push_back(static_cast<float>(i % 7) - 2.5f);
  return x;
}

// Trains two epochs on `samples` samples; returns the figures of all updates and evaluations, then the parameters.
inline std::vector<double> train_tiny(Device& device, const Artifact& artifact, int samples) {
  struct Figures : TrainObserver {
    std::vector<double> all;
    Status updated(const UpdateReport& report) override {
      all.insert(all.end(), {report.window.loss, report.window.norm});
      return {};
    }
    Status evaluated(const EvaluationReport& report) override {
      all.insert(all.end(), {report.result.loss, report.result.metrics.at(0)});
      return {};
    }
  } figures;
  Session session(device, artifact.plan);
  EXPECT_EQ(session.open(artifact).text(), "");
  EXPECT_EQ(session.init(3, 0.5f).text(), "");
  const Dataset data = make_data(numbers(samples), {1, 5});
  TrainOptions options;
  options.epochs = 2;
  TrainResult result;
  EXPECT_EQ(train(session, artifact.plan, data, &data, options, figures, result).text(), "");
  for (const NamedTensor& tensor : session.parameters().take())
    figures.all.insert(figures.all.end(), tensor.data.begin(), tensor.data.end());
  return figures.all;
}

// The device does the operations of the host in the same order.
inline void expect_host_training(Device& device, const Artifact& artifact, int samples) {
  FakeDevice host(artifact.plan);
  EXPECT_EQ(train_tiny(device, artifact, samples), train_tiny(host, artifact, samples));
}

}  // namespace gacc::test
