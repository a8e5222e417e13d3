// Checkpoints on the fake device: a run that is broken off anywhere and resumed is the run without a break;
// a file that is cut, altered or of another run is refused, and the refusal says why.
#include "runtime/store/checkpoint.h"
#include "runtime/run/train.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>

#include "runtime/atomic_file.h"
#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

// A folder of this test, gone when it ends; in memory where that is possible, because thousands of synced
// files take minutes on a disk.
struct Folder {
  Folder() {
    std::string name = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    name += "/gacc-checkpoint-XXXXXX";
    if (mkdtemp(name.data())) path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(std::string_view file) const { return fmt::format("{}/{}", path, file); }
  std::string path;
};

// A training run in pieces. Each piece is a process of its own, as it were: another device, another session,
// and nothing but the checkpoint file goes from one to the next. `events` is the log: what a piece reports
// after its last checkpoint is lost.
struct Pieces : TrainObserver {
  Pieces(int64_t samples, int64_t micro_batch, int64_t accumulate, std::string_view tail)
      : plan(test::tiny_plan(micro_batch, accumulate, tail)) {
    std::vector<float> x;
    for (int64_t i = 0; i < samples; ++i) x.push_back(static_cast<float>((i * 7) % 11) - 4.25f);
    data = test::make_data(x, {1});
    eval = test::make_data({5, -1, 2});
    options.seed = 3;
    options.epochs = 3;
  }
  // True when the run has come to its end.
  bool run() {
    test::FakeDevice device(plan);
    Session session(device, plan);
    Artifact artifact;
    artifact.plan = plan;
    EXPECT_TRUE(session.open(artifact));
    EXPECT_TRUE(session.init(7, 0.25f));
    CheckpointReader reader;
    if (saved) {
      Status status = reader.open(file);
      EXPECT_TRUE(status) << status.text();
      EXPECT_TRUE(reader.check(plan, {}));
      EXPECT_TRUE(reader.restore(plan, session));
      options.resume = &reader.content().train;
      events.resize(static_cast<size_t>(reader.content().log.bytes));
    }
    options.checkpoint = [&](const TrainState& state) {
      saved = true;
      ++checkpoints;
      return write_checkpoint(file, {{}, {}, state, {static_cast<int64_t>(events.size()), 0}}, plan, session);
    };
    TrainResult result;
    Status status = train(session, plan, data, with_eval ? &eval : nullptr, options, *this, result);
    EXPECT_TRUE(status) << status.text();
    weights = {device.at("w", 0), device.at("w", 1)};
    note(fmt::format("end {} {} {} {}", result.epochs, result.updates, result.launches, result.samples));
    return !result.interrupted;
  }
  void note(const std::string& text) { events += text + "\n"; }
  Status updated(const UpdateReport& report) override {
    note(fmt::format("update {} {} {} {} {}", report.epoch, report.update, report.window.launches,
                     report.window.samples, report.window.loss));
    return {};
  }
  Status epoch_done(const EpochReport& report) override {
    note(fmt::format("epoch {} {} {} {}", report.epoch, report.loss, report.updates, report.samples));
    return {};
  }
  Status evaluated(const EvaluationReport& report) override {
    note(fmt::format("eval {} {} {}", report.epoch, report.updates, report.result.loss));
    return {};
  }

  Folder folder;
  std::string file = folder / "checkpoint";
  Plan plan;
  Dataset data, eval;
  TrainOptions options;
  bool with_eval = true, saved = false;
  int checkpoints = 0;
  std::string events;
  std::vector<float> weights;
};

void expect_same(const Pieces& broken, const Pieces& whole, const std::string& at) {
  EXPECT_EQ(broken.events, whole.events) << at;
  EXPECT_EQ(broken.weights, whole.weights) << at;
}

// Calls `test` for every tail and some shapes of windows.
void each_shape(const std::function<void(const std::function<Pieces()>&, const std::string&)>& test) {
  for (const char* tail : {"flush", "drop", "carry"})
    for (int64_t samples : {5, 8, 11})
      for (int64_t accumulate : {1, 2, 3, 7}) {
        if (std::string_view(tail) == "drop" && samples / 2 < accumulate) continue;
        test([=] { return Pieces(samples, 2, accumulate, tail); },
             fmt::format("{} {} {}", tail, samples, accumulate));
      }
}

// Pain 36: a checkpoint in the middle of a window keeps its gradients. Pain 37: nothing is counted twice, or
// in other units. Pain 38: the samples go on where they were.
TEST(Checkpoint, pain_36_37_38_a_run_stopped_after_any_launch_continues) {
  each_shape([](const auto& make, const std::string& shape) {
    Pieces whole = make();
    whole.options.eval_every = 2;
    ASSERT_TRUE(whole.run());
    for (int64_t stop = 1; stop <= 18; ++stop) {
      Pieces broken = make();
      broken.options.eval_every = 2;
      broken.options.launches = stop;
      broken.run();
      broken.options.launches = {};
      broken.run();
      expect_same(broken, whole, fmt::format("{} stop {}", shape, stop));
    }
    Pieces steps = make();  // every launch in a process of its own
    steps.options.eval_every = 2;
    for (int64_t stop = 1; stop <= 18; ++stop) {
      steps.options.launches = stop;
      steps.run();
    }
    steps.options.launches = {};
    steps.run();
    expect_same(steps, whole, shape);
  });
}

TEST(Checkpoint, a_run_interrupted_at_any_moment_continues) {
  each_shape([](const auto& make, const std::string& shape) {
    for (int64_t every : {0, 1, 2}) {
      Pieces whole = make();
      whole.options.eval_every = 1;
      whole.options.checkpoint_every = every;
      ASSERT_TRUE(whole.run());
      for (int moment = 0; moment < 1000; ++moment) {
        Pieces broken = make();
        broken.options.eval_every = 1;
        broken.options.checkpoint_every = every;
        int asked = 0;
        broken.options.interrupted = [&] { return asked++ == moment; };
        if (broken.run()) break;
        broken.run();
        expect_same(broken, whole, fmt::format("{} every {} moment {}", shape, every, moment));
      }
    }
  });
}

// As if the process had been killed: the last checkpoint written in time is all there is.
TEST(Checkpoint, a_run_killed_after_any_checkpoint_continues) {
  each_shape([](const auto& make, const std::string& shape) {
    for (int64_t every : {0, 1, 2}) {
      Pieces whole = make();
      whole.options.checkpoint_every = every;
      whole.options.eval_every = 2;
      ASSERT_TRUE(whole.run());
      EXPECT_GT(whole.checkpoints, 0);
      for (int kept = 1; kept <= whole.checkpoints; ++kept) {
        Pieces broken = make();
        broken.options.checkpoint_every = every;
        broken.options.eval_every = 2;
        // The run as a whole, of which only the first `kept` checkpoints reach the disk.
        test::FakeDevice device(broken.plan);
        Session session(device, broken.plan);
        Artifact artifact;
        artifact.plan = broken.plan;
        ASSERT_TRUE(session.open(artifact));
        ASSERT_TRUE(session.init(7, 0.25f));
        int written = 0;
        broken.options.checkpoint = [&](const TrainState& state) {
          if (written++ >= kept) return Status();
          Checkpoint content{{}, {}, state, {static_cast<int64_t>(broken.events.size()), 0}};
          return write_checkpoint(broken.file, content, broken.plan, session);
        };
        TrainResult result;
        ASSERT_TRUE(train(session, broken.plan, broken.data, &broken.eval, broken.options, broken, result));
        broken.saved = true;
        broken.run();
        expect_same(broken, whole, fmt::format("{} every {} kept {}", shape, every, kept));
      }
    }
  });
}

TEST(Checkpoint, a_finished_run_goes_on_with_more_epochs) {
  for (const char* tail : {"flush", "drop", "carry"}) {
    Pieces whole(11, 2, 4, tail), extended(11, 2, 4, tail);
    whole.options.epochs = 5;
    whole.run();
    extended.options.epochs = 2;
    extended.run();
    std::string events = extended.events;
    extended.run();  // there is nothing left to do
    EXPECT_EQ(extended.events, events);
    extended.options.epochs = 5;
    extended.run();
    expect_same(extended, whole, tail);
  }
}

// ---------------------------------------------------------------- the file

struct File : testing::Test {
  void SetUp() override {
    ASSERT_TRUE(session.open(Artifact{plan, "", ""}));
    ASSERT_TRUE(session.init(7, 0.25f));
    checkpoint.settings = {{"model.name", "tiny"}, {"train.tail", "carry"}, {"optimizer.beta1", "0.9"}};
    checkpoint.rate = {1e-3, 0.1};
    checkpoint.train.epoch_sums.loss = 1.0 / 3;
    checkpoint.train.counted.loss = std::numeric_limits<double>::infinity();
    checkpoint.train.evaluation.result.loss = std::numeric_limits<double>::quiet_NaN();
    checkpoint.train.evaluation.result.metrics = {0.125};
    checkpoint.train.samples = (int64_t{1} << 40) + 1;
    checkpoint.log = {123, 0xfedcba98};
    ASSERT_TRUE(write_checkpoint(file, checkpoint, plan, session));
    bytes = read_file(file).take();
  }
  // What reading these bytes says; empty when they are taken.
  std::string refusal(std::string_view content) {
    std::ofstream(file, std::ios::binary) << content;
    CheckpointReader reader;
    return reader.open(file).text();
  }
  std::string difference(const Plan& now, const Settings& settings) {
    CheckpointReader reader;
    EXPECT_TRUE(reader.open(file));
    return reader.check(now, settings).text();
  }

  Folder folder;
  std::string file = folder / "checkpoint", bytes;
  Plan plan = test::tiny_plan(4, 2, "carry");
  test::FakeDevice device{plan};
  Session session{device, plan};
  Checkpoint checkpoint;
};

TEST_F(File, keeps_everything) {
  device.at("w", 0) = device.at("w.grad", 1) = -1;
  CheckpointReader reader;
  ASSERT_TRUE(reader.open(file));
  const Checkpoint& read = reader.content();
  EXPECT_EQ(read.settings, checkpoint.settings);
  EXPECT_EQ(read.rate.of_model, 1e-3);
  EXPECT_EQ(read.rate.used, 0.1);
  EXPECT_EQ(read.train.epoch_sums.loss, 1.0 / 3);
  EXPECT_EQ(read.train.counted.loss, std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(read.train.evaluation.result.loss));
  EXPECT_EQ(read.train.evaluation.result.metrics, (std::vector<double>{0.125}));
  EXPECT_EQ(read.train.evaluation.updates, -1);
  EXPECT_EQ(read.train.samples, (int64_t{1} << 40) + 1);
  EXPECT_EQ(read.log.bytes, 123);
  EXPECT_EQ(read.log.crc32, 0xfedcba98);
  ASSERT_TRUE(reader.restore(plan, session));
  EXPECT_EQ(device.at("w", 0), 8);
  EXPECT_EQ(device.at("w.grad", 1), 0);
}

TEST_F(File, cut_at_any_byte_it_is_refused) {
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_NE(refusal(bytes.substr(0, size)).find("damaged"), std::string::npos) << size;
  EXPECT_NE(refusal(bytes + '\0').find("damaged"), std::string::npos);
  EXPECT_NE(refusal(bytes + bytes).find("damaged"), std::string::npos);
  EXPECT_EQ(refusal(bytes), "");
}

TEST_F(File, with_any_bit_flipped_it_is_refused) {
  for (size_t at = 0; at < bytes.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string altered = bytes;
      altered[at] = static_cast<char>(altered[at] ^ 1 << bit);
      EXPECT_NE(refusal(altered), "") << at << " " << bit;
    }
  bytes[24] ^= 1;  // the first tensor's first byte
  EXPECT_NE(refusal(bytes).find("the checksum of tensor w;"), std::string::npos) << refusal(bytes);
}

TEST_F(File, other_files_are_told_apart) {
  EXPECT_NE(refusal(std::string(100, 'x')).find("is no checkpoint of gacc"), std::string::npos);
  EXPECT_NE(refusal("").find("it has only 0 bytes"), std::string::npos);
}

TEST_F(File, every_setting_that_differs_is_named) {
  EXPECT_EQ(difference(plan, checkpoint.settings), "");
  for (size_t i = 0; i < checkpoint.settings.size(); ++i) {
    Settings now = checkpoint.settings;
    now[i].second = "another";
    EXPECT_EQ(difference(plan, now), fmt::format("cannot resume from {}: {} was {}, and is another now", file,
                                                 now[i].first, checkpoint.settings[i].second));
  }
  Settings more = checkpoint.settings, less = checkpoint.settings;
  more.emplace_back("optimizer.eps", "1e-08");
  less.pop_back();
  EXPECT_NE(difference(plan, more).find("optimizer.eps was not set, and is 1e-08 now"), std::string::npos);
  EXPECT_NE(difference(plan, less).find("optimizer.beta1 was 0.9, and is not set now"), std::string::npos);
}

TEST_F(File, every_tensor_that_differs_is_named) {
  auto changed = [&](const std::function<void(PlanBuffer&)>& change) {
    Plan now = plan;
    change(now.buffers[2]);
    return difference(now, checkpoint.settings);
  };
  EXPECT_NE(changed([](PlanBuffer& b) { b.shape = {3}; }).find("tensor w.grad was f32[2], and is f32[3] now"),
            std::string::npos);
  EXPECT_NE(
      changed([](PlanBuffer& b) { b.dtype = DType::f16; }).find("tensor w.grad was f32[2], and is f16[2]"),
      std::string::npos);
  EXPECT_NE(
      changed([](PlanBuffer& b) { b.role = BufferRole::control; }).find("kind of tensor w.grad was accum"),
      std::string::npos);
  EXPECT_NE(changed([](PlanBuffer& b) { b.bytes = 12; }).find("size of tensor w.grad was 8 bytes"),
            std::string::npos);
  EXPECT_NE(
      changed([](PlanBuffer& b) {
        b.name = "v.grad";
      }).find("tensor v.grad was not there, and is f32[2] now; it had w.grad instead: is a layer renamed?"),
      std::string::npos);
  Plan less = plan;
  less.buffers.erase(less.buffers.begin() + 2);
  EXPECT_NE(difference(less, checkpoint.settings).find("tensor w.grad was f32[2], and is not there now"),
            std::string::npos);
  Plan moved = plan;  // where a buffer lies is of no account
  moved.buffers[2].offset += 256;
  EXPECT_EQ(difference(moved, checkpoint.settings), "");
}

TEST_F(File, settings_come_from_the_model_the_data_and_the_command) {
  Artifact artifact;
  artifact.plan = plan;
  artifact.plan.settings = {{"optimizer.beta1", "0.9"}, {"train.epochs", "2"}};
  artifact.plan.operations = 7;
  Dataset data = test::make_data({1, 2, 3});
  TrainOptions options;
  Settings settings = settings_of(artifact, data, options);
  auto same = [&] { return settings_of(artifact, data, options) == settings; };
  artifact.plan.settings[1].second = "3";  // the epochs may differ
  EXPECT_TRUE(same());
  artifact.plan.operations = 8;
  EXPECT_FALSE(same());
  artifact.plan.operations = 7;
  artifact.plan.settings[0].second = "0.8";
  EXPECT_FALSE(same());
  artifact.plan.settings[0].second = "0.9";
  data.columns[0].bytes[5] ^= std::byte{1};
  EXPECT_FALSE(same());
  data.columns[0].bytes[5] ^= std::byte{1};
  options.shuffle = false;
  EXPECT_FALSE(same());
  options.shuffle = true;
  options.seed = 1;
  EXPECT_FALSE(same());
}

TEST(CheckpointFolder, is_made_cleaned_and_locked) {
  Folder folder;
  std::string path = folder / "a/b";
  CheckpointFolder first;
  ASSERT_TRUE(first.open(path));
  EXPECT_EQ(first.file(), path + "/checkpoint");
  CheckpointFolder second;
  EXPECT_NE(second.open(path).text().find("another run uses the checkpoint folder"), std::string::npos);
  std::filesystem::create_directories(folder / "d");
  ASSERT_TRUE(write_file_atomically(folder / "d/.gacc-1-2.tmp", "half"));
  ASSERT_TRUE(write_file_atomically(folder / "d/checkpoint", "x"));
  ASSERT_TRUE(write_file_atomically(folder / "d/mine", "x"));
  CheckpointFolder third;
  ASSERT_TRUE(third.open(folder / "d"));
  EXPECT_FALSE(std::filesystem::exists(folder / "d/.gacc-1-2.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / "d/mine"));
  CheckpointFolder fourth;
  EXPECT_NE(fourth.open(folder / "d/mine").text(), "");
}

}  // namespace
}  // namespace gacc
