// The verbs of a session on the fake device.
#include "runtime/session/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SessionTest : public testing::Test {
 protected:
  void open() {
    Artifact artifact;
    artifact.plan = plan;
    ASSERT_TRUE(session.open(artifact));
    ASSERT_TRUE(session.init(7, 0.5f));
  }
  // One launch of these samples; those of `marks` that are -1 are not counted.
  Status step(std::vector<float> x, std::vector<int32_t> marks = {}) {
    marks.resize(x.size());
    std::vector<std::span<const std::byte>> inputs = {std::as_bytes(std::span(x)),
                                                      std::as_bytes(std::span(marks))};
    return session.step(inputs, static_cast<int64_t>(x.size()));
  }

  WindowReport update() {
    Result<WindowReport> report = session.update();
    EXPECT_EQ(report.status().text(), "");
    return report ? report.take() : WindowReport();
  }

  Plan plan = test::tiny_plan(4, 2, "flush");
  test::FakeDevice device{plan};
  Session session{device, plan};
};

TEST_F(SessionTest, a_window_is_the_mean_over_all_that_was_counted) {
  open();
  EXPECT_EQ(device.at("w"), 8);  // from the seed
  ASSERT_TRUE(step({1, 2, 3, 4}));
  ASSERT_TRUE(step({5, 100}, {0, -1}));
  EXPECT_EQ(session.window().launches(), 2);
  std::vector<NamedTensor> gradients = session.mean_gradients().take();
  ASSERT_EQ(gradients.size(), 1u);  // not of the frozen one
  EXPECT_EQ(gradients[0].name, "w");
  EXPECT_EQ(gradients[0].data, (std::vector<float>{3, -3}));
  WindowReport report = update();
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.launches, 2);
  EXPECT_EQ(report.samples, 6);
  EXPECT_EQ(report.sums.count, 5);
  EXPECT_EQ(report.loss, 3);
  EXPECT_FLOAT_EQ(report.norm, std::sqrt(18.0f));
  EXPECT_EQ(report.lr, 0.5f);
  EXPECT_EQ(device.at("w"), 6.5f);
  EXPECT_EQ(session.window().launches(), 0);
}

TEST_F(SessionTest, nothing_counted_makes_no_update) {
  open();
  ASSERT_TRUE(step({1, 2}, {-1, -1}));
  std::vector<NamedTensor> gradients = session.mean_gradients().take();
  EXPECT_EQ(gradients[0].data, (std::vector<float>{0, 0}));
  WindowReport report = update();
  EXPECT_FALSE(report.applied);
  EXPECT_TRUE(report.finite);
  EXPECT_EQ(device.calls, (std::vector<std::string>{"init", "step 2", "update"}));  // which makes none
  EXPECT_EQ(device.at("w"), 8);
}

TEST_F(SessionTest, dropping_clears_every_accumulator) {
  open();
  ASSERT_TRUE(step({1, kInfinity}));
  ASSERT_TRUE(session.drop_window());
  EXPECT_EQ(device.at("w.grad", 0), 0);
  EXPECT_EQ(device.at("w.grad", 1), 0);
  EXPECT_EQ(device.at("loss.sum"), 0);
  EXPECT_EQ(device.at<int32_t>("loss.count"), 0);
  EXPECT_EQ(session.window().launches(), 0);
}

TEST_F(SessionTest, the_first_bad_gradient_is_named) {
  open();
  ASSERT_TRUE(step({1, kInfinity}));
  WindowReport report = update();
  EXPECT_FALSE(report.finite);
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.bad_parameter, "w");
  EXPECT_EQ(device.at("w"), 8);
}

TEST_F(SessionTest, parameters_by_name) {
  open();
  std::vector<NamedTensor> tensors = session.parameters().take();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "frozen");  // sorted, and trained or not
  EXPECT_EQ(tensors[1].data, (std::vector<float>{8, 2}));
  tensors[1].data = {4, 5};
  ASSERT_TRUE(session.write_parameter(*plan.find("w"), 1, std::span(tensors[1].data).subspan(1)));
  EXPECT_EQ(device.at("w", 0), 8);
  EXPECT_EQ(device.at("w", 1), 5);
}

TEST_F(SessionTest, half_copies_follow_their_parameters) {
  for (auto [name, dtype, size] : {std::tuple("w", DType::f16, 2), std::tuple("frozen", DType::bf16, 1)}) {
    PlanBuffer& half = test::add_state(plan, std::string(name) + ".h", dtype, {size});
    half.role = BufferRole::half;
    half.of = name;
  }
  open();
  ASSERT_TRUE(session.write_parameter(*plan.find("frozen"), 0, std::vector<float>{257}));
  ASSERT_TRUE(session.write_parameter(*plan.find("w"), 0, std::vector<float>{0.1f, -2049}));
  EXPECT_EQ(device.at("w", 1), -2049);  // the master
  EXPECT_EQ(device.at<uint16_t>("w.h", 0), 0x2e66);
  EXPECT_EQ(device.at<uint16_t>("w.h", 1), 0xe800);       // -2048
  EXPECT_EQ(device.at<uint16_t>("frozen.h", 0), 0x4380);  // 256
}

TEST_F(SessionTest, mean_gradients_are_unscaled) {
  test::scale_dynamically(plan, 8);
  open();
  ASSERT_TRUE(step({1, 2, 3, 6}));
  std::vector<NamedTensor> gradients = session.mean_gradients().take();
  EXPECT_EQ(gradients[0].data, (std::vector<float>{6, -6}));  // the mean is 3, and the seed was 4 / 8
}

TEST_F(SessionTest, a_skipped_window_is_cleared_by_the_device) {
  test::scale_dynamically(plan, 1);
  open();
  ASSERT_TRUE(step({1, kInfinity}));
  WindowReport report = update();
  EXPECT_FALSE(report.applied);
  EXPECT_EQ(report.scale, 4);
  EXPECT_EQ(report.next_scale, 2);
  EXPECT_EQ(report.skips, 1);
  EXPECT_EQ(device.at("w.grad"), 0);
  ASSERT_TRUE(step({1, 3}));
  report = update();
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.scale, 2);
  EXPECT_EQ(device.at("w"), 7);
}

TEST_F(SessionTest, inputs_are_checked) {
  open();
  EXPECT_EQ(step({1, 2, 3, 4, 5}).text(), "a launch takes 1 to 4 samples, 5 were given");
  float x[1] = {1};
  std::vector<std::span<const std::byte>> inputs = {std::as_bytes(std::span(x))};
  EXPECT_EQ(session.step(inputs, 1).text(), "the step takes 2 inputs, 1 were given");
  inputs.push_back({});
  EXPECT_EQ(session.step(inputs, 1).text(), "input mark takes 4 bytes, 0 were given");
}

// Nearest, ties to even; the data are f32 all the same.
TEST_F(SessionTest, an_input_that_is_stored_as_half_is_rounded_once) {
  for (const auto& [stored, bits] :
       {std::pair(DType::f16, std::vector<uint16_t>{0x3c00, 0x3c02, 0x7c00, 0xb800}),
        std::pair(DType::bf16, std::vector<uint16_t>{0x3f80, 0x3f80, 0x4780, 0xbf00})}) {
    plan.inputs[0].stored = stored;
    open();
    ASSERT_TRUE(step({1 + 0x1p-11f, 1 + 0x3p-11f, 65520, -0.5f}));
    std::vector<uint16_t> there(4);
    ASSERT_TRUE(device.read(plan.inputs[0].step_offset, std::as_writable_bytes(std::span(there))));
    EXPECT_EQ(there, bits) << dtype_text(stored);
    std::vector<int32_t> marks(1);  // the other one lies where it did
    ASSERT_TRUE(device.read(plan.inputs[1].step_offset, std::as_writable_bytes(std::span(marks))));
    EXPECT_EQ(marks[0], 0);
  }
}

TEST_F(SessionTest, an_input_that_is_half_already_is_taken_as_it_is) {
  plan.inputs[0].stored = DType::f16;
  open();
  const std::vector<uint16_t> x = {0x3c01, 0x7bff};
  const std::vector<int32_t> marks = {0, 0};
  const auto step_of = [&](std::span<const std::byte> first) {
    const std::vector<std::span<const std::byte>> inputs = {first, std::as_bytes(std::span(marks))};
    return session.step(inputs, 2);
  };
  ASSERT_EQ(step_of(std::as_bytes(std::span(x))).text(), "");
  std::vector<uint16_t> there(2);
  ASSERT_TRUE(device.read(plan.inputs[0].step_offset, std::as_writable_bytes(std::span(there))));
  EXPECT_EQ(there, x);
  EXPECT_EQ(step_of(std::as_bytes(std::span(x)).first(2)).text(), "input x takes 8 bytes, 2 were given");
}

TEST_F(SessionTest, an_artifact_without_its_state_is_refused) {
  Artifact artifact;
  std::erase_if(plan.buffers, [](const PlanBuffer& buffer) { return buffer.name == "window.ok"; });
  EXPECT_EQ(session.open(artifact).text(), "the artifact has no state window.ok");
  plan = test::tiny_plan(4, 2, "flush");
  plan.metrics = {"accuracy", "perplexity", "other"};
  EXPECT_EQ(Session(device, plan).open(artifact).text(), "the artifact has no state eval.other");
}

// Counts 2^29 elements a launch, each of a loss of 1.
class CountingDevice final : public test::FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  Status run(Program program, int64_t) override {
    if (program != Program::eval) return {};
    at<int32_t>("eval.count") += 1 << 29;  // four in a row would wrap
    at("eval.loss") += static_cast<float>(1 << 29);
    return {};
  }
};

TEST(SessionEvaluation, counts_beyond_an_i32) {
  Plan plan = test::tiny_plan(1 << 19, 1, "flush");
  plan.inputs[1].target = true;
  plan.inputs[1].shape = {1024};
  CountingDevice device(plan);
  Session session(device, plan);
  Artifact artifact;
  artifact.plan = plan;
  ASSERT_TRUE(session.open(artifact));
  const std::vector<std::byte> x(4), mark(4096);
  const std::vector<std::span<const std::byte>> inputs = {x, mark};
  ASSERT_TRUE(session.evaluation().begin());
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(session.evaluation().add(inputs, 1));
  const EvalReport report = session.evaluation().end().take();
  EXPECT_EQ(report.samples, 9);
  EXPECT_EQ(report.count, int64_t{9} << 29);
  EXPECT_EQ(report.loss, 1);
}

TEST_F(SessionTest, a_long_evaluation_does_not_drift) {
  open();
  const std::vector<float> x = {0.01F};
  const std::vector<int32_t> mark = {0};
  const std::vector<std::span<const std::byte>> inputs = {std::as_bytes(std::span(x)),
                                                          std::as_bytes(std::span(mark))};
  ASSERT_TRUE(session.evaluation().begin());
  for (int i = 0; i < 200'000; ++i) ASSERT_TRUE(session.evaluation().add(inputs, 1));
  const EvalReport report = session.evaluation().end().take();
  EXPECT_EQ(report.count, 200'000);
  EXPECT_NEAR(report.loss, static_cast<double>(x[0]), 1e-6);  // 8e-6 off where one f32 sums all
  EXPECT_EQ(report.metrics[0], 1);
}

// Gives numbers in parts: 10 times the row, and the column.
class PartsDevice final : public Device {
 public:
  explicit PartsDevice(const Plan& plan) : plan_(plan), arena_(static_cast<size_t>(plan.arena_bytes)) {}
  std::string name() const override { return "parts"; }
  Status load(const Artifact&) override { return {}; }
  Status run(Program program, int64_t) override {
    runs.emplace_back(kProgramNames[static_cast<size_t>(program)]);
    if (program != Program::answer) return {};
    const int64_t columns = plan_.predict.shape[1];
    for (int64_t i = 0; i < plan_.predict.rows; ++i) {
      int32_t row = 0;
      std::memcpy(&row, &arena_[static_cast<size_t>(plan_.predict.rows_offset + 4 * i)], sizeof row);
      for (int64_t j = 0; j < columns; ++j) {
        const auto value = static_cast<float>(10 * row + j);
        std::memcpy(&arena_[static_cast<size_t>(plan_.predict.offset + 4 * (i * columns + j))], &value,
                    sizeof value);
      }
    }
    return {};
  }
  Status write(int64_t offset, std::span<const std::byte> bytes) override {
    std::ranges::copy(bytes, arena_.begin() + offset);
    return {};
  }
  Status read(int64_t offset, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), &arena_[static_cast<size_t>(offset)], bytes.size());
    return {};
  }
  int64_t peak_bytes() const override { return plan_.arena_bytes; }

  std::vector<std::string> runs;

 private:
  const Plan& plan_;
  std::vector<std::byte> arena_;
};

// Those parts are run that have what is read, and predict once.
TEST(SessionParts, outputs_are_put_together) {
  Plan plan = test::tiny_plan(1, 1, "flush");
  plan.predict = {.batch = 1, .offset = 512, .shape = {6, 3}, .rows = 2, .rows_offset = 256, .positions = {}};
  plan.arena_bytes = 1024;
  PartsDevice device(plan);
  Session session(device, plan);
  const std::vector<std::span<const std::byte>> inputs(plan.inputs.size());
  std::vector<float> outputs(18);
  ASSERT_TRUE(session.prediction().run(inputs, 1));
  ASSERT_TRUE(session.prediction().read(0, outputs));
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i], static_cast<float>(10 * (i / 3) + i % 3));
  EXPECT_EQ(device.runs, (std::vector<std::string>{"predict", "answer", "answer", "answer"}));
  device.runs.clear();
  ASSERT_TRUE(session.prediction().run(inputs, 1));
  outputs.assign(3, 0);
  ASSERT_TRUE(session.prediction().read(9, outputs));  // row 3 alone
  EXPECT_EQ(outputs, (std::vector<float>{30, 31, 32}));
  outputs.assign(4, 0);
  ASSERT_TRUE(session.prediction().read(4, outputs));  // of rows 1 and 2, which are in two parts
  EXPECT_EQ(outputs, (std::vector<float>{11, 12, 20, 21}));
  EXPECT_EQ(device.runs, (std::vector<std::string>{"predict", "answer", "answer", "answer"}));
}

}  // namespace
}  // namespace gacc
