// Kernels against the reference evaluator: on the host whole, in tasks and with memory that is used again; in the
// emulator likewise, and bit for bit the host's where the order of operations is the same.
#pragma once
#include "tests/codegen/emulated.h"
#include "tests/codegen/half_modules.h"
#include "tests/codegen/host.h"

namespace gacc::codegen {

enum class On : uint8_t { host, both };

class Check {
 public:
  explicit Check(const ir::Module& module, On on = On::both) : host_(module) {
    if (on == On::both) device_.emplace(module);
  }

  // tolerance: |difference| <= tolerance * (1 + |expected|).
  void operator()(int64_t batch, const Data& data, double tolerance,
                  ir::RegionKind kind = ir::RegionKind::eval) {
    ir::State after = data.state;
    const auto values = ir::evaluate(host_.module, kind, batch, data.inputs, after);
    const auto machine = [&](const ModuleKernels& program, bool reuse) {
      Machine made(host_.module, program, kind, batch);
      if (reuse) made.reuse_memory();
      made.set(data.inputs, data.state);
      return made;
    };
    Machine whole = machine(host_.program, false), tiled = machine(host_.program, false);
    host_.run(whole, batch, false, kind);
    host_.run(tiled, batch, true, kind);
    whole.expect_equal(values, after, tolerance);
    EXPECT_EQ(whole.words(), tiled.words()) << "the result depends on the cut into tasks";
    Machine tight = machine(host_.program, true);
    host_.run(tight, batch, true, kind);
    tight.expect_equal(values, after, tolerance);
    if (!device_) return;
    for (const bool reuse : {false, true}) {
      Machine gpu = machine(device_->program(), reuse);
      device_->run(gpu, batch);
      gpu.expect_equal(values, after, tolerance);
      if (!reuse && device_->exact() && !has_nan(values) && !has_nan(after.buffers)) {
        EXPECT_EQ(whole.words(), gpu.words()) << "host and device differ in a bit";
      }
    }
  }

  const Host& host() const { return host_; }

 private:
  // NaN has many bits.
  static bool has_nan(const std::map<std::string, ir::Tensor>& tensors) {
    return std::ranges::any_of(tensors, [](const auto& each) {
      return std::ranges::any_of(each.second.data, [](double x) { return std::isnan(x); });
    });
  }

  const Host host_;
  std::optional<Device> device_;
};

// The same with random data: `positive`, or of both signs.
inline void check_eval(const ir::Module& module, const std::vector<int64_t>& batches, double tolerance,
                       On on = On::both, bool positive = false) {
  Check check(module, on);
  std::mt19937 random(7);
  for (const int64_t batch : batches) {
    check(batch, random_data(module, batch, random, positive), tolerance);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace gacc::codegen
