// A Device in plain host memory that runs one tiny model, so that sessions and the training loop can be
// tested to the last number: input x f32[] and mark i32[] (-1: the sample is not counted), one parameter w
// f32[2] and a frozen one.
//
//   step:   every counted sample adds x to loss.sum, 1 to loss.count, (x, -x) to w.grad
//   update: w -= lr * w.grad / loss.count, when all is finite; then clears the accumulators. A loss scale is
//           kept and halved, but scales nothing. Without a counted sample it tells that there was none
//   eval:   every counted sample adds x to eval.loss, 1 to eval.count, and 1 to eval.accuracy where x > 0
#pragma once
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/device.h"

namespace gacc::test {

inline Plan tiny_plan(int64_t micro_batch, int64_t accumulate, std::string_view tail) {
  Plan plan;
  plan.model = "tiny";
  plan.target = "sm_80";
  plan.parameters = 3;
  plan.micro_batch = micro_batch;
  plan.accumulate = accumulate;
  plan.tail = parse_tail(tail);
  plan.lr = 0.5;
  plan.optimizer = "sgd";
  plan.metrics = {"accuracy"};
  int64_t offset = 0;
  auto buffer = [&](std::string name, BufferRole role, DType dtype, std::vector<int64_t> shape = {}) {
    const int64_t elements = elements_of(shape);
    plan.buffers.push_back(
        {std::move(name), dtype, std::move(shape), offset, elements * 4, elements * 4, true, {}, role});
    offset += 256 * ((elements * 4 + 255) / 256);
  };
  buffer("w", BufferRole::weight, DType::f32, {2});
  buffer("frozen", BufferRole::weight, DType::f32, {1});
  plan.buffers.back().trainable = false;
  buffer("w.grad", BufferRole::gradient, DType::f32, {2});
  plan.buffers.back().of = "w";
  buffer("loss.sum", BufferRole::total, DType::f32);
  buffer("loss.count", BufferRole::total, DType::i32);
  for (const char* name : {"lr", "window.sum", "window.loss", "window.norm", "window.lr"})
    buffer(name, BufferRole::control, DType::f32);
  for (const char* name : {"eval.loss", "eval.accuracy"}) buffer(name, BufferRole::evaluation, DType::f32);
  for (const char* name : {"seed.low", "seed.high", "window.ok", "window.count", "updates"})
    buffer(name, BufferRole::control, DType::i32);
  buffer("eval.count", BufferRole::evaluation, DType::i32);
  plan.inputs.push_back({"x", DType::f32, {}, offset, offset, {}, {}, {}, {}, {}});
  offset += 4 * micro_batch + 256;
  offset -= offset % 4;
  plan.inputs.push_back({"mark", DType::i32, {}, offset, offset, {}, {}, {}, {}, -1});
  plan.arena_bytes = offset + 4 * micro_batch;
  return plan;
}

// A further state of one element, or of the shape given.
inline PlanBuffer& add_state(Plan& plan, std::string name, DType dtype, std::vector<int64_t> shape = {}) {
  const int64_t bytes = dtype_bytes(dtype) * elements_of(shape);
  const int64_t offset = (plan.arena_bytes + 255) / 256 * 256;
  plan.buffers.push_back({std::move(name), dtype, std::move(shape), offset, bytes, bytes, true});
  plan.arena_bytes = offset + bytes;
  return plan.buffers.back();
}

// The loss is scaled, dynamically: a window that is not finite is skipped and halves the scale.
inline void scale_dynamically(Plan& plan, int64_t elements) {
  plan.skip_nonfinite = true;
  plan.seed_rules = SeedRules{elements, true};
  add_state(plan, "loss.scale", DType::f32);
  add_state(plan, "window.scale", DType::f32);
  add_state(plan, "skips", DType::i32);
}

class FakeDevice : public Device {
 public:
  explicit FakeDevice(const Plan& plan, bool every_core = false) : plan_(plan), every_core_(every_core) {}

  std::vector<std::string> calls;  // "step 4", "update", "eval 3"; writes and reads are not recorded

  std::string name() const override { return "fake"; }
  bool takes_every_core() const override { return every_core_; }
  Status load(const Artifact&) override {
    arena_.assign(static_cast<size_t>(plan_.arena_bytes), std::byte{0});
    return {};
  }
  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    if (!fits(offset, bytes.size())) return Status::error("write outside the arena");
    std::memcpy(arena_.data() + offset, bytes.data(), bytes.size());
    return {};
  }
  Status read(int64_t offset, std::span<std::byte> bytes) override {
    if (!fits(offset, bytes.size())) return Status::error("read outside the arena");
    std::memcpy(bytes.data(), arena_.data() + offset, bytes.size());
    return {};
  }
  int64_t peak_bytes() const override { return plan_.arena_bytes; }

  Status run(Program program, int64_t batch) override {
    switch (program) {
      case Program::init:
        calls.push_back("init");
        init();
        break;
      case Program::step:
        calls.push_back(fmt::format("step {}", batch));
        step(batch);
        break;
      case Program::update:
        calls.push_back("update");
        update();
        break;
      case Program::eval:
        calls.push_back(fmt::format("eval {}", batch));
        eval(batch);
        break;
      case Program::predict:
      case Program::answer:
      case Program::decode:
      case Program::measure:
        return Status::error("the fake device has no predictions");
      case Program::norms:
      case Program::ratios:
      case Program::clear:
      case Program::close:
        return Status::error("the fake device has one lane");
    }
    return {};
  }

  template <class T = float>
  T& at(std::string_view buffer, int64_t index = 0) {
    return reinterpret_cast<T*>(arena_.data() + plan_.find(buffer)->offset)[index];
  }

 private:
  bool fits(int64_t offset, size_t bytes) const { return offset >= 0 && offset + bytes <= arena_.size(); }
  template <class T>
  T* input(size_t index) {
    return reinterpret_cast<T*>(arena_.data() + plan_.inputs[index].step_offset);
  }
  void init() {
    at("w", 0) = 1 + static_cast<float>(at<int32_t>("seed.low"));
    at("w", 1) = 2;
    at("frozen") = 3;
    if (plan_.find(state::loss_scale)) at("loss.scale") = 4;
  }
  void step(int64_t batch) {
    for (int64_t i = 0; i < batch; ++i) {
      if (input<int32_t>(1)[i] == -1) continue;
      float x = input<float>(0)[i];
      at("loss.sum") += x;
      at<int32_t>("loss.count") += 1;
      at("w.grad", 0) += x;
      at("w.grad", 1) -= x;
    }
  }
  void update() {
    at("window.sum") = at("loss.sum");
    at<int32_t>("window.count") = at<int32_t>("loss.count");
    if (at<int32_t>("loss.count") == 0) return;
    float mean = 1.0f / static_cast<float>(at<int32_t>("loss.count"));
    float first = at("w.grad", 0) * mean, second = at("w.grad", 1) * mean;
    at("window.loss") = at("loss.sum") * mean;
    at("window.norm") = std::sqrt(first * first + second * second);
    at("window.lr") = at("lr");
    bool ok = std::isfinite(at("window.norm"));
    at<int32_t>("window.ok") = ok;
    if (plan_.find(state::loss_scale)) {
      at("window.scale") = at("loss.scale");
      if (!ok) at("loss.scale") *= 0.5f;
    }
    if (plan_.skip_nonfinite) at<int32_t>("skips") = ok ? 0 : at<int32_t>("skips") + 1;
    if (!ok && !plan_.skip_nonfinite) return;
    at("loss.sum") = 0;
    at<int32_t>("loss.count") = 0;
    at("w.grad", 0) = at("w.grad", 1) = 0;
    if (!ok) return;
    at("w", 0) -= at("lr") * first;
    at("w", 1) -= at("lr") * second;
    at<int32_t>("updates") += 1;
  }
  void eval(int64_t batch) {
    for (int64_t i = 0; i < batch; ++i) {
      if (input<int32_t>(1)[i] == -1) continue;
      float x = input<float>(0)[i];
      at("eval.loss") += x;
      at<int32_t>("eval.count") += 1;
      at("eval.accuracy") += x > 0;
    }
  }

  const Plan& plan_;
  bool every_core_;
  std::vector<std::byte> arena_;
};

// Samples x[i], all counted but those listed in `ignored`.
inline Dataset make_data(const std::vector<float>& x, const std::vector<size_t>& ignored = {}) {
  std::vector<int32_t> marks(x.size(), 0);
  for (size_t i : ignored) marks[i] = -1;
  auto bytes = [](const auto& values) {
    auto view = std::as_bytes(std::span(values));
    return std::vector<std::byte>(view.begin(), view.end());
  };
  Dataset data;
  data.samples = static_cast<int64_t>(x.size());
  data.columns.push_back({"x", "f32", {}, bytes(x)});
  data.columns.push_back({"mark", "i32", {}, bytes(marks)});
  return data;
}

}  // namespace gacc::test
