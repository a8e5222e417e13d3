// The training loop on the fake device: what is launched and updated, what is reported, when it ends.
#include "runtime/run/train.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

// Trains the tiny model on x = 1, 2, 3, ... in file order and writes down what happens, one word an event:
// "u3:2.5/4" an update numbered 3 with loss 2.5 over 4 samples, "e1:2.5/4" an epoch, "v1:2.5" an evaluation.
struct Trial : TrainObserver {
  Trial(int64_t samples, int64_t micro_batch, int64_t accumulate, std::string_view tail)
      : plan(test::tiny_plan(micro_batch, accumulate, tail)) {
    for (int64_t i = 1; i <= samples; ++i) x.push_back(static_cast<float>(i));
    options.shuffle = false;
  }
  std::string run() {
    Session session(device, plan);
    Artifact artifact;
    artifact.plan = plan;
    EXPECT_TRUE(session.open(artifact));
    EXPECT_TRUE(session.init(0, 0.5f));
    device.calls.clear();
    data = test::make_data(x, ignored);
    Status status = train(session, plan, data, eval.samples ? &eval : nullptr, options, *this, result);
    error = status.text();
    return events;
  }
  void note(std::string text) { events += (events.empty() ? "" : " ") + text; }
  Status updated(const UpdateReport& report) override {
    EXPECT_GE(report.seconds, 0);
    note(fmt::format("u{}:{}/{}", report.update, report.window.loss, report.window.samples));
    return {};
  }
  Status epoch_done(const EpochReport& report) override {
    note(fmt::format("e{}:{}/{}", report.epoch, report.loss, report.samples));
    return {};
  }
  Status evaluated(const EvaluationReport& report) override {
    note(fmt::format("v{}:{}", report.epoch, report.result.loss));
    accuracy = report.result.metrics.at(0);
    return {};
  }
  Status launched(const LaunchReport&) override {
    ++launches;
    return {};
  }

  Plan plan;
  std::vector<float> x;
  std::vector<size_t> ignored;
  Dataset data, eval;
  test::FakeDevice device{plan};
  TrainOptions options;
  TrainResult result;
  std::string events, error;
  double accuracy = -1;
  int launches = 0;
};

TEST(Train, flush_updates_with_what_is_there) {
  Trial trial(7, 2, 2, "flush");
  EXPECT_EQ(trial.run(), "u1:2.5/4 u2:6/3 e1:4/7");
  EXPECT_EQ(trial.device.calls,
            (std::vector<std::string>{"step 2", "step 2", "update", "step 2", "step 1", "update"}));
  EXPECT_EQ(trial.result.updates, 2);
  EXPECT_EQ(trial.result.epochs, 1);
  EXPECT_EQ(trial.result.samples, 7);
  EXPECT_EQ(trial.result.open_launches, 0);
  Trial short_window(5, 2, 2, "flush");
  EXPECT_EQ(short_window.run(), "u1:2.5/4 u2:5/1 e1:3/5");
}

TEST(Train, drop_throws_short_batches_and_windows_away) {
  Trial trial(7, 2, 2, "drop");  // launches 1+2, 3+4 | 5+6 dropped | 7 never launched
  trial.options.epochs = 2;
  EXPECT_EQ(trial.run(), "u1:2.5/4 e1:3.5/6 u2:2.5/4 e2:3.5/6");
  EXPECT_EQ(trial.device.calls.size(), 8u);
  EXPECT_EQ(trial.device.at("w.grad"), 0);
}

TEST(Train, carry_goes_on_in_the_next_epoch) {
  Trial trial(5, 2, 2, "carry");  // (1 2)(3 4) | (5) + (1 2) | (3 4)(5)
  trial.options.epochs = 2;
  EXPECT_EQ(trial.run(), fmt::format("u1:2.5/4 e1:3/5 u2:{}/3 u3:4/3 e2:3/5", 8.0f / 3));
  Trial open(5, 2, 2, "carry");
  open.options.epochs = 1;
  open.options.keep_gradients = true;
  EXPECT_EQ(open.run(), "u1:2.5/4 e1:3/5");
  EXPECT_EQ(open.result.open_launches, 1);
  EXPECT_EQ(open.result.gradients.at(0).data, (std::vector<float>{5, -5}));  // of the open window
}

TEST(Train, windows_of_every_shape_count_every_sample_once) {
  for (const char* tail : {"flush", "drop", "carry"})
    for (int64_t samples = 1; samples <= 9; ++samples)
      for (int64_t micro_batch = 1; micro_batch <= 4; ++micro_batch)
        for (int64_t accumulate = 1; accumulate <= 4; ++accumulate) {
          Trial trial(samples, micro_batch, accumulate, tail);
          trial.options.epochs = 3;
          std::string at = fmt::format("{} {} {} {}", tail, samples, micro_batch, accumulate);
          trial.run();
          if (!trial.error.empty()) {
            EXPECT_TRUE(trial.device.calls.empty()) << at;
            EXPECT_NE(trial.error.find("no update could ever happen"), std::string::npos) << at;
            continue;
          }
          bool drop = trial.plan.tail == Tail::drop;
          int64_t used = drop ? samples / micro_batch * micro_batch : samples;
          int64_t each = drop ? samples / micro_batch : (samples + micro_batch - 1) / micro_batch;
          int64_t updates = trial.plan.tail == Tail::flush ? 3 * ((each + accumulate - 1) / accumulate)
                            : drop                         ? 3 * (each / accumulate)
                                                           : 3 * each / accumulate;
          EXPECT_EQ(trial.result.samples, 3 * used) << at;
          EXPECT_EQ(trial.result.launches, 3 * each) << at;
          EXPECT_EQ(trial.launches, 3 * each) << at;
          EXPECT_EQ(trial.result.updates, updates) << at;
          EXPECT_EQ(trial.result.epochs, 3) << at;
        }
}

TEST(Train, limits_stop_at_the_first_that_is_reached) {
  Trial updates(7, 2, 2, "flush");
  updates.options.updates = 3;  // over as many epochs as that takes
  EXPECT_EQ(updates.run(), "u1:2.5/4 u2:6/3 e1:4/7 u3:2.5/4");
  EXPECT_EQ(updates.result.epochs, 1);
  Trial launches(7, 2, 3, "flush");
  launches.options.launches = 2;
  launches.options.keep_gradients = true;
  EXPECT_EQ(launches.run(), "");  // the window is open: it is not applied, but it can be looked at
  EXPECT_EQ(launches.result.open_launches, 2);
  EXPECT_EQ(launches.result.gradients.at(0).data, (std::vector<float>{2.5, -2.5}));
  Trial last(7, 2, 3, "flush");
  last.options.launches = 4;  // the last launch of an epoch ends its window
  EXPECT_EQ(last.run(), "u1:3.5/6 u2:7/1 e1:4/7");
  Trial both(7, 2, 2, "flush");
  both.options.updates = 100;
  both.options.epochs = 1;
  EXPECT_EQ(both.run(), "u1:2.5/4 u2:6/3 e1:4/7");
  Trial none(7, 2, 2, "drop");
  none.options.epochs = 0;
  EXPECT_EQ(none.run(), "");
  EXPECT_EQ(none.error, "");
  Trial of_the_plan(2, 2, 1, "flush");
  of_the_plan.plan.epochs = 2;
  EXPECT_EQ(of_the_plan.run(), "u1:1.5/2 e1:1.5/2 u2:1.5/2 e2:1.5/2");
}

TEST(Train, gradients_are_those_of_the_closed_window) {
  Trial trial(7, 2, 2, "flush");
  trial.options.keep_gradients = true;
  trial.run();
  EXPECT_EQ(trial.result.gradients.at(0).data, (std::vector<float>{6, -6}));
  Trial dropped(7, 2, 2, "drop");
  dropped.options.keep_gradients = true;
  dropped.run();
  EXPECT_EQ(dropped.result.gradients.at(0).data, (std::vector<float>{5.5, -5.5}));
}

TEST(Train, ignored_samples_count_nothing) {
  Trial trial(6, 2, 1, "flush");
  trial.ignored = {1, 2, 3};
  EXPECT_EQ(trial.run(), "u1:1/2 u2:5.5/2 e1:4/6");  // the window of samples 3 and 4 has no number
  EXPECT_EQ(trial.result.updates, 2);
  Trial nothing(2, 2, 1, "flush");
  nothing.ignored = {0, 1};
  nothing.options.updates = 5;  // would never end
  nothing.run();
  EXPECT_NE(nothing.error.find("nothing was counted in epoch 1"), std::string::npos) << nothing.error;
}

TEST(Train, a_gradient_that_is_not_finite_ends_the_run) {
  Trial trial(6, 2, 1, "flush");
  trial.x[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(trial.run(), "u1:1.5/2 u2:inf/2");
  EXPECT_NE(
      trial.error.find("update 2 (epoch 1): the gradient of w is not finite since launch 1 of 1 (loss inf)"),
      std::string::npos)
      << trial.error;
  EXPECT_EQ(trial.result.updates, 1);
  EXPECT_EQ(trial.result.skipped, 1);
}

// The window that failed is run again, launch by launch; it may have begun in the epoch before.
TEST(Train, the_launch_that_went_non_finite_is_named) {
  Trial trial(10, 2, 4, "carry");  // launches 1 to 5 an epoch; the second window has 5, then 1 to 3
  trial.options.epochs = 2;
  trial.x[9] = std::numeric_limits<float>::infinity();
  trial.run();
  EXPECT_NE(trial.error.find("update 2 (epoch 2): the gradient of w is not finite since launch 1 of 4"),
            std::string::npos)
      << trial.error;
  Trial late(8, 2, 4, "flush");
  late.x[5] = std::numeric_limits<float>::infinity();
  late.run();
  EXPECT_NE(late.error.find("the gradient of w is not finite since launch 3 of 4"), std::string::npos)
      << late.error;
}

TEST(Train, pain_16_a_scale_that_gets_too_small_ends_the_run) {
  Trial trial(80, 2, 1, "flush");
  test::scale_dynamically(trial.plan, 1);
  trial.x[0] = std::numeric_limits<float>::infinity();
  trial.x[4] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 10; i < 80; ++i) trial.x[i] = std::numeric_limits<float>::infinity();
  trial.run();
  EXPECT_EQ(trial.result.updates, 3);  // windows 2, 4 and 5
  // 4, halved by windows 1, 3 and from 6 on: the 17th makes 2^-15.
  EXPECT_EQ(trial.result.skipped, 17);
  EXPECT_NE(trial.error.find(
                "update 20 (epoch 1): the loss scale would fall to 3.0517578e-05, below 2^-14, after 15 "
                "windows in a row were skipped, the last because the gradient of w is not finite since "
                "launch 1 of 1"),
            std::string::npos)
      << trial.error;
}

TEST(Train, pain_16_too_many_skips_in_a_row_end_the_run) {
  Trial trial(12, 2, 2, "flush");
  test::scale_dynamically(trial.plan, 1);
  trial.plan.max_skips = 2;
  for (size_t i : {7, 11}) trial.x[i] = std::numeric_limits<float>::infinity();
  trial.run();
  EXPECT_NE(trial.error.find(
                "2 windows in a row were skipped (precision.max_skips), the last because the gradient of "
                "w is not finite since launch 2 of 2"),
            std::string::npos)
      << trial.error;
  EXPECT_EQ(trial.result.updates, 1);
}

TEST(Train, evaluates_after_epochs_and_at_the_end_but_nothing_twice) {
  Trial trial(4, 2, 1, "flush");
  trial.eval = test::make_data({1, -1, 3}, {});
  trial.options.updates = 3;
  EXPECT_EQ(trial.run(), "u1:1.5/2 u2:3.5/2 e1:2.5/4 v1:1 u3:1.5/2 v2:1");
  EXPECT_NEAR(trial.accuracy, 2.0 / 3, 1e-12);
  EXPECT_EQ(std::count(trial.device.calls.begin(), trial.device.calls.end(), "eval 1"), 2);  // ragged
  Trial often(8, 2, 1, "flush");
  often.eval = test::make_data({5}, {});
  often.options.eval_every = 2;
  EXPECT_EQ(often.run(), "u1:1.5/2 u2:3.5/2 v1:5 u3:5.5/2 u4:7.5/2 v1:5 e1:4.5/8");
  Trial idle(2, 2, 3, "carry");  // an epoch without an update repeats the result without measuring
  idle.eval = test::make_data({5}, {});
  idle.options.epochs = 3;
  EXPECT_EQ(idle.run(), "e1:1.5/2 v1:5 e2:1.5/2 v2:5 u1:1.5/6 e3:1.5/2 v3:5");
  EXPECT_EQ(std::count(idle.device.calls.begin(), idle.device.calls.end(), "eval 1"), 2);
  Trial only(2, 2, 1, "flush");  // --epochs 0 --eval: measures what was loaded
  only.eval = test::make_data({5}, {});
  only.options.epochs = 0;
  EXPECT_EQ(only.run(), "v0:5");
}

TEST(Train, an_interruption_finishes_the_launch) {
  Trial trial(8, 2, 2, "flush");
  trial.eval = test::make_data({5}, {});
  trial.options.interrupted = [&] { return trial.launches == 3; };
  EXPECT_EQ(trial.run(), "u1:2.5/4");
  EXPECT_TRUE(trial.result.interrupted);
  EXPECT_EQ(trial.result.open_launches, 1);
  EXPECT_EQ(trial.device.calls.back(), "step 2");
}

TEST(Train, an_error_of_the_observer_ends_the_run) {
  struct Full : Trial {
    using Trial::Trial;
    Status updated(const UpdateReport&) override { return Status::error("the disk is full"); }
  } trial(8, 2, 2, "flush");
  trial.run();
  EXPECT_EQ(trial.error, "the disk is full");
}

TEST(Train, shuffling_depends_on_the_seed_alone) {
  auto events = [](uint64_t seed) {
    Trial trial(32, 2, 2, "flush");
    trial.options.shuffle = true;
    trial.options.seed = seed;
    trial.options.epochs = 2;
    return trial.run();
  };
  EXPECT_EQ(events(1), events(1));
  EXPECT_NE(events(1), events(2));
}

TEST(Train, expected_launches) {
  auto expected = [](std::string_view tail, std::optional<int64_t> epochs, std::optional<int64_t> updates,
                     std::optional<int64_t> launches) {
    TrainOptions options;
    options.epochs = epochs;
    options.updates = updates;
    options.launches = launches;
    return expected_launches(test::tiny_plan(2, 2, tail), 9,
                             options);  // 5 launches an epoch, 4 under drop
  };
  EXPECT_EQ(expected("flush", 3, {}, {}), 15);
  EXPECT_EQ(expected("drop", 3, {}, {}), 12);
  EXPECT_EQ(expected("flush", 3, {}, 7), 7);
  EXPECT_EQ(expected("flush", {}, 6, {}), 10);
  EXPECT_EQ(expected("carry", {}, 6, {}), 12);
  EXPECT_EQ(expected("flush", {}, {}, {}), 5);
}

}  // namespace
}  // namespace gacc
