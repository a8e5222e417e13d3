// Runs that are made twice, on a fake device that computes wrong when it is told to.
#include "runtime/session/recheck.h"

#include <gtest/gtest.h>

#include <functional>

#include "runtime/session/session.h"
#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

class FaultyDevice : public test::FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  Status run(Program program, int64_t batch) override {
    const Status status = FakeDevice::run(program, batch);
    if (static_cast<int>(calls.size()) == fault_in && fault) fault();
    return status;
  }
  int fault_in = 0;  // which call of `run`, from 1
  std::function<void()> fault;
};

class RecheckTest : public testing::Test {
 protected:
  void open(int64_t every) {
    plan.programs = {{"step", {}}, {"update", {}}};
    touch(plan.programs[0], {"w.grad", "loss.sum", "loss.count"}, {"w"});
    touch(plan.programs[1],
          {"w", "w.grad", "loss.sum", "loss.count", "window.sum", "window.loss", "window.norm", "window.lr",
           "window.ok", "window.count", "updates"},
          {"lr"});
    Artifact artifact;
    artifact.plan = plan;
    ASSERT_TRUE(session.open(artifact));
    ASSERT_TRUE(session.init(7, 0.5f));
    session.recheck().begin(every);
  }
  void touch(PlanProgram& program, std::vector<std::string> writes, std::vector<std::string> reads) {
    for (const auto& [names, to] : {std::pair(writes, &program.writes), {reads, &program.reads}})
      for (const std::string& name : names) to->push_back(plan.find(name) - plan.buffers.data());
    std::ranges::sort(program.writes);
  }
  Status step(std::vector<float> x) {
    const std::vector<int32_t> marks(x.size());
    const std::vector<std::span<const std::byte>> inputs = {std::as_bytes(std::span(x)),
                                                            std::as_bytes(std::span(marks))};
    return session.step(inputs, static_cast<int64_t>(x.size()));
  }

  Plan plan = test::tiny_plan(4, 2, "flush");
  FaultyDevice device{plan};
  Session session{device, plan};
};

TEST_F(RecheckTest, every_second_launch_and_update_is_made_twice_and_changes_nothing_else) {
  open(2);
  for (int update = 0; update < 2; ++update) {
    ASSERT_TRUE(step({1, 2}));
    ASSERT_TRUE(step({3, 6}));
    EXPECT_EQ(device.at("loss.sum"), 12);
    ASSERT_TRUE(session.update());
  }
  EXPECT_EQ(device.calls, (std::vector<std::string>{"init", "step 2", "step 2", "step 2", "update", "step 2",
                                                    "step 2", "step 2", "update", "update"}));
  EXPECT_EQ(device.at("w", 0), 8 - 2 * 0.5f * 3);
  EXPECT_EQ(session.recheck().counts().launches, 2);
  EXPECT_EQ(session.recheck().counts().updates, 1);
}

TEST_F(RecheckTest, a_difference_is_named_and_the_state_before_is_put_back) {
  for (const int run : {3, 4}) {  // the second launch, the first time and the second
    SCOPED_TRACE(run);
    device.calls.clear();
    open(2);
    device.fault_in = run;
    device.fault = [&] { device.at("w.grad", 1) += 0.5f; };
    ASSERT_TRUE(step({1, 2}));
    const Status status = step({3, 6});
    const std::string values = run == 3 ? "-11.5 (0xc1380000) the first time and -12 (0xc1400000) the second"
                                        : "-12 (0xc1400000) the first time and -11.5 (0xc1380000) the second";
    EXPECT_EQ(status.text(), "--recheck: launch 2: w.grad[1] is " + values +
                                 ". It was made twice from the same state: this machine computes wrong");
    EXPECT_EQ(device.at("w.grad", 1), -3);
    EXPECT_EQ(device.at("loss.sum"), 3);
    EXPECT_EQ(device.at<int32_t>("loss.count"), 2);
  }
}

TEST_F(RecheckTest, a_change_of_what_a_launch_only_reads_is_named_and_undone) {
  open(1);
  device.fault_in = 3;
  device.fault = [&] { device.at<uint32_t>("w", 1) ^= 1u << 31; };
  EXPECT_EQ(step({1, 2}).text(),
            "--recheck: launch 1: w[1], which it only reads, was 2 (0x40000000) before, and is -2 "
            "(0xc0000000) after. It "
            "was made twice from the same state: this machine computes wrong");
  EXPECT_EQ(device.at("w", 1), 2);
}

TEST_F(RecheckTest, launches_count_from_the_beginning_of_the_run) {
  open(1);
  TrainState before;
  before.launches = 7;
  session.recheck().begin(3, before);
  ASSERT_TRUE(session.skip(4, 0));  // the 8th is another rank's
  device.fault_in = 3;
  device.fault = [&] { device.at("loss.sum") = -0.0f; };
  EXPECT_NE(step({1}).text().find("launch 9: loss.sum is 1 (0x3f800000) the first time and -0 (0x80000000)"),
            std::string::npos);
}

}  // namespace
}  // namespace gacc
