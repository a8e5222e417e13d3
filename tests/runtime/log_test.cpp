// The log's lines have the contract's fields in its order, and the file is either whole or not there.
#include "runtime/tell/log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"
#include "runtime/tell/progress.h"
#include "runtime/tell/waiting.h"
#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

TEST(Log, lines) {
  Plan plan = test::tiny_plan(32, 4, "flush");
  plan.model = "a \"b\"";
  EXPECT_EQ(
      start_line(plan, {"0.1", "cpu", "csv:f", "", "", {{"x", {"f32", {"a", "b"}, {}, {0.5, 1}, {2, 1}}}}}),
      fmt::format(
          R"({{"event":"start","model":"a \"b\"","device":"cpu","micro_batch":32,"accumulate":4,)"
          R"("effective_batch":128,"arena_bytes":{},"parameters":3,"ranks":1,"version":"0.1","seed":0,"optimizer":"sgd",)"
          R"("lr":0.5,"data":"csv:f","columns":{{"x":["a","b"]}},)"
          R"("normalize":{{"x":{{"mean":[0.5,1.0],"std":[2.0,1.0]}}}}}})",
          plan.arena_bytes));
  UpdateReport update;
  update.epoch = 1;
  update.update = 2;
  update.window.launches = 3;
  update.window.samples = 70;
  update.window.applied = true;
  update.window.loss = 0.1f;
  update.window.lr = 1e-3f;
  update.window.norm = std::numeric_limits<float>::infinity();
  update.seconds = 0.25;
  EXPECT_EQ(
      update_line(update, plan),
      R"({"event":"update","epoch":1,"update":2,"launches":3,"samples":70,"loss":0.1,"lr":0.001,"loss_scale":1,)"
      R"("skipped":false,"grad_norm":null,"effective_batch":128,"seconds":0.250000})");
  EXPECT_EQ(
      epoch_line({1, std::nan(""), 2, 0, 70, 1.5}),
      R"({"event":"epoch","epoch":1,"loss":null,"updates":2,"skipped":0,"samples":70,"seconds":1.500000})");
  EXPECT_EQ(
      eval_line({1, 7, {10, 10, 0.5, {0.9}}, 0}, plan),
      R"({"event":"eval","epoch":1,"loss":0.5,"samples":10,"accuracy":0.9,"updates":7,"seconds":0.000000})");
  TrainResult result;
  result.epochs = 1;
  result.updates = 2;
  result.samples = 70;
  EXPECT_EQ(
      end_line(result, 4096),
      R"({"event":"end","epochs":1,"updates":2,"skipped":0,"samples":70,"seconds":0.000000,"peak_bytes":4096})");
  result.interrupted = true;
  EXPECT_TRUE(nlohmann::json::parse(end_line(result, 4096))["interrupted"].get<bool>());
}

class LogFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "gacc-log-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    path = folder + "/run.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string read(const std::string& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  size_t files() {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
  }
  std::string folder, path;
};

TEST_F(LogFileTest, a_new_log_can_be_followed) {
  LogFile log;
  ASSERT_TRUE(log.open(path));
  ASSERT_TRUE(log.write("{}"));
  EXPECT_EQ(read(path), "{}\n");
  ASSERT_TRUE(log.commit());
  EXPECT_EQ(read(path), "{}\n");
}

TEST_F(LogFileTest, an_old_log_stays_until_the_new_one_is_whole) {
  std::ofstream(path) << "old";
  LogFile log;
  ASSERT_TRUE(log.open(path));
  ASSERT_TRUE(log.write("{}"));
  EXPECT_EQ(read(path), "old");
  ASSERT_TRUE(log.commit());
  EXPECT_EQ(read(path), "{}\n");
  EXPECT_EQ(files(), 1u);
}

TEST_F(LogFileTest, without_a_line_nothing_is_left) {
  for (const char* written : {"", "{}"}) {
    {
      LogFile log;
      ASSERT_TRUE(log.open(path));
      if (*written) {
        ASSERT_TRUE(log.write(written));
      }
    }
    EXPECT_EQ(files(), *written ? 1u : 0u);
  }
}

TEST_F(LogFileTest, a_new_log_is_as_private_as_the_old_one) {
  ASSERT_TRUE(write_file_atomically(path, "old"));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  LogFile log;
  ASSERT_TRUE(log.open(path));
  ASSERT_TRUE(log.write("{}"));
  ASSERT_TRUE(log.commit());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(LogFileTest, files_that_a_log_may_write) {
  EXPECT_EQ(log_files(path)[0], path);
  EXPECT_EQ(log_files(path)[1], "");
  std::ofstream(folder + "/real") << "old";
  std::filesystem::create_symlink("real", path);
  EXPECT_EQ(log_files(path)[1], std::filesystem::canonical(folder).string() + "/real.partial");
}

TEST_F(LogFileTest, a_resumed_log_goes_on_where_the_checkpoint_was) {
  LogPosition position;
  {
    LogFile log;
    ASSERT_TRUE(log.open(path));
    ASSERT_TRUE(log.write("kept"));
    position = log.position();
    EXPECT_EQ(position.bytes, 5);
    ASSERT_TRUE(log.write("after the checkpoint"));
    ASSERT_TRUE(log.commit());
  }
  {
    LogFile log;  // a run that fails before it writes anything
    ASSERT_TRUE(log.open(path, position));
    EXPECT_TRUE(log.continues());
  }
  EXPECT_EQ(read(path), "kept\nafter the checkpoint\n");
  for (const char* killed : {"", ".partial"}) {  // a log that grew in place, or beside an older one
    if (*killed) {
      std::filesystem::rename(path, path + killed);
      std::ofstream(path) << "older";
    }
    LogFile log;
    ASSERT_TRUE(log.open(path, position));
    EXPECT_TRUE(log.continues());
    ASSERT_TRUE(log.write("new"));
    EXPECT_EQ(read(path + killed), "kept\nnew\n");
    EXPECT_EQ(log.position().bytes, 9);
    ASSERT_TRUE(log.commit());
    EXPECT_EQ(read(path), "kept\nnew\n");
    EXPECT_EQ(files(), 1u);
  }
  for (const char* other : {"kepT\nnew\n", "kep"}) {  // not the log that the checkpoint knows
    std::ofstream(path) << other;
    LogFile log;
    ASSERT_TRUE(log.open(path, position));
    EXPECT_FALSE(log.continues());
    ASSERT_TRUE(log.write("new"));
    EXPECT_EQ(read(path), other);
    ASSERT_TRUE(log.commit());
    EXPECT_EQ(read(path), "new\n");
  }
}

TEST_F(LogFileTest, a_link_keeps_pointing_at_the_log) {
  std::ofstream(folder + "/real") << "old";
  std::filesystem::create_symlink("real", path);
  LogFile log;
  ASSERT_TRUE(log.open(path));
  ASSERT_TRUE(log.write("{}"));
  ASSERT_TRUE(log.commit());
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  EXPECT_EQ(read(folder + "/real"), "{}\n");
}

TEST_F(LogFileTest, errors_are_told) {
  EXPECT_EQ(LogFile().open(folder).text(), fmt::format("cannot open the log {}: it is a folder", folder));
  EXPECT_EQ(LogFile().open(folder + "/no/run.jsonl").text(),
            fmt::format("cannot open the log {}/no/run.jsonl: No such file or directory", folder));
  LogFile full;
  ASSERT_TRUE(full.open("/dev/full"));
  EXPECT_EQ(full.write("{}").text(), "cannot write the log /dev/full: No space left on device");
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

TEST_F(LogFileTest, a_full_disk_leaves_the_old_log_and_the_new_lines) {
  std::ofstream(path) << "old";
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small{64, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // stands for the full disk: writes beyond 64 bytes fail
  LogFile log;
  Status opened = log.open(path), first = log.write(std::string(50, 'x')),
         second = log.write(std::string(50, 'y'));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(opened);
  EXPECT_TRUE(first);
  EXPECT_EQ(second.text(),
            fmt::format("cannot write the log {0}: File too large; the lines until then are in {0}.partial",
                        std::filesystem::canonical(path).string()));
  EXPECT_EQ(read(path), "old");
  EXPECT_EQ(read(path + ".partial"), std::string(50, 'x') + "\n");
  EXPECT_EQ(files(), 2u);
}

TEST(Progress, texts) {
  Plan plan = test::tiny_plan(32, 4, "flush");
  ProgressState state{1, 2, 17, 0, 0.4312f, 1e-3f, 48200, 11.2};
  state.done = 0.4299;
  const std::string first = "42 %  0:12 left  epoch 1/2  update 17  loss 0.4312  48200 samples/s  lr 0.001";
  EXPECT_EQ(progress_line(state, plan, 120), first + "  eff. batch 128 (32 × 4)  loss scale 1");
  EXPECT_EQ(progress_line(state, plan, first.size() + 25), first + "  eff. batch 128 (32 × 4)");
  EXPECT_EQ(progress_line(state, plan, first.size() + 24), first);
  EXPECT_EQ(progress_line(state, plan, 79), first);
  EXPECT_EQ(progress_line(state, plan, 20), "42 %  0:12 left");
  EXPECT_EQ(progress_text(state), "epoch 1/2, update 17: loss 0.4312, 48200 samples/s, 42 %, 0:12 left");
  EXPECT_EQ(duration_text(0), "0:00");
  EXPECT_EQ(duration_text(725), "12:05");
  EXPECT_EQ(duration_text(11045), "3:04:05");
  EXPECT_EQ(evaluation_text({1, 7, {10, 10, 0.5, {0.9531}}, 0}, plan),
            "eval, epoch 1, update 7: loss 0.5, 10 samples, accuracy 95.31 %");
  EXPECT_EQ(evaluation_text({0, 0, {10, 10, 0.5, {0.9531}}, 0, true}, plan),
            "eval: loss 0.5, 10 samples, accuracy 95.31 % (the best)");
  EXPECT_EQ(epoch_text({1, 0.25, 2, 0, 70, 2}),
            "epoch 1: loss 0.25, 2 updates, 70 samples in 2.00 s (35 samples/s)");
  EXPECT_EQ(epoch_text({1, 0.25, 1, 0, 4, 10}),
            "epoch 1: loss 0.25, 1 update, 4 samples in 10.00 s (0.4 samples/s)");
}

}  // namespace
}  // namespace gacc
