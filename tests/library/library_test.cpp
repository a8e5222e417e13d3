// Every function of gacc.h: with what it wants, with null, and in a wrong order; and that a window by the
// library is gacc-exec's to the bit.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "library/gacc.h"

namespace {

constexpr const char* kModel = R"(model = { name = "small", metrics = ["accuracy"] }
inputs.x = { shape = [3], dtype = "f32", normalize = { mean = 0.5, std = 0.25 } }
inputs.label = { dtype = "i32", range = 2 }
loss = { type = "cross_entropy", target = "label" }
optimizer = { type = "adam", lr = 0.01 }
train = { micro_batch = 4, accumulate = 2, shuffle = false }
[[layers]]
type = "linear"
name = "fc"
features = 2
)";

std::string text_of(const gacc_error& error) { return error.text; }

class LibraryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const gacc_error error = gacc_compile_text(kModel, "small.toml", nullptr, &step_);
    ASSERT_EQ(error.kind, GACC_OK) << error.text;
  }
  static void TearDownTestSuite() { gacc_step_free(step_); }
  void SetUp() override {
    char name[] = "/tmp/gacc-library-XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override {
    EXPECT_EQ(gacc_session_close(run_).kind, GACC_OK);  // null, too
    std::filesystem::remove_all(folder_);
  }

  void good(const gacc_error& error) { ASSERT_EQ(error.kind, GACC_OK) << error.text; }
  // Refused with a sentence that has `words`, and the session goes on.
  void wrong(const gacc_error& error, const std::string& words, int kind = GACC_WRONG_CALL) {
    EXPECT_EQ(error.kind, kind) << error.text;
    EXPECT_NE(text_of(error).find(words), std::string::npos) << error.text << "\nlacks: " << words;
  }
  gacc_session* open() {
    const gacc_device_options one = {1, 0};
    gacc_session* session = nullptr;
    good(gacc_session_open(step_, "cpu", &one, &session));
    return session;
  }
  // Opens run_ on a step with these settings.
  void open_with(const std::vector<const char*>& sets) {
    gacc_step* step = nullptr;
    const gacc_compile_options options = {sets.data(), sets.size(), nullptr, 0, 0, nullptr, 0};
    good(gacc_compile_text(kModel, "m", &options, &step));
    good(gacc_session_open(step, "cpu", nullptr, &run_));
    gacc_step_free(step);  // a session keeps what it needs
  }
  gacc_session* begin() {
    run_ = open();
    good(gacc_session_init(run_, 7, 0));
    return run_;
  }
  std::vector<gacc_array> arrays(size_t samples = 4) const {
    return {{"label", "i32", labels_, samples * sizeof labels_[0]}, {"x", "u8", x_, samples * sizeof x_[0]}};
  }
  void window(gacc_session* run) {
    for (int i = 0; i < 2; ++i) good(gacc_session_step(run, arrays().data(), 2, 4));
  }
  std::vector<float> weight(gacc_session* run) {
    std::vector<float> values(6);
    good(gacc_session_read(run, "fc.weight", values.data(), values.size() * sizeof(float)));
    return values;
  }
  std::string path(const char* name) const { return folder_ + "/" + name; }

  static gacc_step* step_;
  gacc_session* run_ = nullptr;
  std::string folder_;
  unsigned char x_[4][3] = {{0, 10, 250}, {255, 3, 7}, {20, 200, 100}, {90, 90, 90}};
  int32_t labels_[4] = {0, 1, 1, 0};
};
gacc_step* LibraryTest::step_ = nullptr;

TEST_F(LibraryTest, Version) { EXPECT_STREQ(gacc_version(), "0.1.0"); }

TEST_F(LibraryTest, CompileText) {
  gacc_step* step = nullptr;
  wrong(gacc_compile_text(nullptr, "m", nullptr, &step), "null");
  wrong(gacc_compile_text(kModel, "m", nullptr, nullptr), "null");
  const char* const sets[] = {"train.micro_batch=8", nullptr};
  gacc_compile_options options = {sets, 2, nullptr, 0, 0, nullptr, 0};
  wrong(gacc_compile_text(kModel, "m", &options, &step), "entry 1 is null");
  EXPECT_EQ(step, nullptr);
  options = {sets, 1, "sm_90", 0, 0, nullptr, 0};
  good(gacc_compile_text(kModel, nullptr, &options, &step));
  gacc_step_info info;
  good(gacc_step_info_of(step, &info));
  EXPECT_EQ(info.micro_batch, 8);
  gacc_step_free(step);
  const char* const no_value[] = {"train"};
  options = {no_value, 1, nullptr, 0, 0, nullptr, 0};
  wrong(gacc_compile_text(kModel, "m", &options, &step), "expected KEY=VALUE", GACC_FAILED);
  options = {nullptr, 0, "sm_1", 0, 0, nullptr, 0};
  wrong(gacc_compile_text(kModel, "m", &options, &step), "sm_1", GACC_FAILED);
}

TEST_F(LibraryTest, CompileSaysWhere) {
  std::string text = kModel;
  text.replace(text.find("\"linear\""), 8, "\"linaer\"");
  gacc_step* step = nullptr;
  const gacc_error error = gacc_compile_text(text.c_str(), "m.toml", nullptr, &step);
  wrong(error, "m.toml:8:8: error: unknown layer type \"linaer\"; did you mean \"linear\"?", GACC_FAILED);
  EXPECT_EQ(error.line, 8);
  EXPECT_EQ(error.column, 8);
  // The first that has a place.
  const gacc_error other = gacc_compile_text("a = 1", "m.toml", nullptr, &step);
  wrong(other, "m.toml: error: the table [model] is missing", GACC_FAILED);
  EXPECT_EQ(other.line, 1);
}

TEST_F(LibraryTest, CompileFile) {
  gacc_step* step = nullptr;
  wrong(gacc_compile_file(nullptr, nullptr, &step), "null");
  wrong(gacc_compile_file("x", nullptr, nullptr), "null");
  wrong(gacc_compile_file("/nonesuch.toml", nullptr, &step), "/nonesuch.toml", GACC_FAILED);
  std::ofstream(path("m.toml")) << kModel;
  good(gacc_compile_file(path("m.toml").c_str(), nullptr, &step));
  gacc_step_free(step);
  std::ofstream(path("m.toml")) << kModel << '\0' << "what C's strings do not show";
  wrong(gacc_compile_file(path("m.toml").c_str(), nullptr, &step), "a byte 0", GACC_FAILED);
}

TEST_F(LibraryTest, SaveAndOpen) {
  gacc_step* step = nullptr;
  wrong(gacc_step_save(nullptr, "x"), "null");
  wrong(gacc_step_save(step_, nullptr), "null");
  wrong(gacc_step_save(step_, "/nonesuch/x"), "/nonesuch", GACC_FAILED);
  good(gacc_step_save(step_, path("step.ptx").c_str()));
  wrong(gacc_open(nullptr, &step), "null");
  wrong(gacc_open("x", nullptr), "null");
  wrong(gacc_open("/nonesuch.ptx", &step), "/nonesuch.ptx", GACC_FAILED);
  std::ofstream(path("not.ptx")) << "no artifact\n";
  wrong(gacc_open(path("not.ptx").c_str(), &step), "not.ptx", GACC_FAILED);
  good(gacc_open(path("step.ptx").c_str(), &step));
  EXPECT_STREQ(gacc_step_plan(step), gacc_step_plan(step_));
  gacc_step_free(step);
  gacc_step_free(nullptr);
}

TEST_F(LibraryTest, Plan) {
  EXPECT_EQ(gacc_step_plan(nullptr), nullptr);
  std::ofstream(path("m.toml")) << kModel;
  const std::string command = GACC_BIN "/gaccc " + path("m.toml") + " --plan --json > " + path("plan.json");
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(path("plan.json"));
  EXPECT_EQ(nlohmann::json::parse(gacc_step_plan(step_)), nlohmann::json::parse(file));
}

TEST_F(LibraryTest, WhatAStepHas) {
  gacc_step_info info;
  gacc_tensor tensor;
  wrong(gacc_step_info_of(nullptr, &info), "null");
  wrong(gacc_step_info_of(step_, nullptr), "null");
  good(gacc_step_info_of(step_, &info));
  EXPECT_STREQ(info.model, "small");
  EXPECT_EQ(info.accumulate, 2);
  EXPECT_EQ(info.parameters, 8);
  EXPECT_EQ(info.inputs, 2U);
  wrong(gacc_step_input(nullptr, 0, &tensor), "null");
  wrong(gacc_step_input(step_, 0, nullptr), "null");
  wrong(gacc_step_input(step_, 2, &tensor), "there are 2 inputs");
  good(gacc_step_input(step_, 0, &tensor));
  EXPECT_STREQ(tensor.name, "x");
  EXPECT_STREQ(tensor.kind, "input");
  EXPECT_EQ(tensor.axes, 1U);
  EXPECT_EQ(tensor.shape[0], 3);
  EXPECT_EQ(tensor.bytes, 12);
  wrong(gacc_step_buffer(nullptr, 0, &tensor), "null");
  wrong(gacc_step_buffer(step_, 0, nullptr), "null");
  wrong(gacc_step_buffer(step_, info.buffers, &tensor), "buffers");
  bool found = false;
  for (size_t i = 0; i < info.buffers; ++i) {
    good(gacc_step_buffer(step_, i, &tensor));
    if (std::string(tensor.name) != "fc.weight") continue;
    found = true;
    EXPECT_STREQ(tensor.kind, "param");
    EXPECT_EQ(tensor.bytes, 24);
  }
  EXPECT_TRUE(found);
}

TEST_F(LibraryTest, Open) {
  gacc_session* session = nullptr;
  const gacc_device_options negative = {-1, 0};
  wrong(gacc_session_open(nullptr, "cpu", nullptr, &session), "null");
  wrong(gacc_session_open(step_, "cpu", nullptr, nullptr), "null");
  wrong(gacc_session_open(step_, "gpu", nullptr, &session), "expected auto");
  wrong(gacc_session_open(step_, "cpu", &negative, &session), "threads -1");
  EXPECT_EQ(session, nullptr);
  EXPECT_EQ(gacc_session_close(nullptr).kind, GACC_OK);
  good(gacc_session_open(step_, "emulate", nullptr, &session));
  good(gacc_session_init(session, 1, 0));
  window(session);
  good(gacc_session_update(session, nullptr));
  good(gacc_session_close(session));
}

TEST_F(LibraryTest, NothingBeforeInit) {
  run_ = open();
  char byte = 0;
  gacc_evaluation evaluation;
  const char* words = "comes after gacc_session_init";
  wrong(gacc_session_load(run_, "x"), words);
  wrong(gacc_session_step(run_, arrays().data(), 2, 4), words);
  wrong(gacc_session_update(run_, nullptr), words);
  gacc_window closed;
  wrong(gacc_session_train(run_, arrays().data(), 2, 4, &closed), words);
  wrong(gacc_session_end_epoch(run_, &closed), words);
  wrong(gacc_session_eval(run_, arrays().data(), 2, 4), words);
  wrong(gacc_session_eval_end(run_, &evaluation), words);
  float output = 0;
  wrong(gacc_session_predict(run_, arrays().data(), 2, 1, &output, 4), words);
  const int32_t text = 1;
  wrong(gacc_session_next_token(run_, &text, 1, nullptr, nullptr), words);
  wrong(gacc_session_read(run_, "fc.weight", &byte, 1), words);
  wrong(gacc_session_write(run_, "fc.weight", &byte, 1), words);
  wrong(gacc_session_save(run_, "x"), words);
  wrong(gacc_session_save_as(run_, "x", nullptr), words);
  double best = NAN;
  int better = 0;
  wrong(gacc_session_evaluated(run_, nullptr, "loss", &best, &better), words);
  wrong(gacc_session_checkpoint(run_, "x"), words);
  EXPECT_EQ(gacc_session_launches(run_), 0);
  good(gacc_session_init(run_, 1, 0));
}

TEST_F(LibraryTest, Nulls) {
  char byte = 0;
  float output = 0;
  gacc_evaluation evaluation;
  int32_t token = 0;
  for (const gacc_error& error :
       {gacc_session_init(nullptr, 1, 0), gacc_session_next_token(nullptr, &token, 1, nullptr, &token),
        gacc_session_load(nullptr, "x"), gacc_session_step(nullptr, nullptr, 0, 1),
        gacc_session_update(nullptr, nullptr), gacc_session_eval(nullptr, nullptr, 0, 1),
        gacc_session_eval_end(nullptr, &evaluation), gacc_session_predict(nullptr, nullptr, 0, 1, &output, 4),
        gacc_session_read(nullptr, "x", &byte, 1), gacc_session_write(nullptr, "x", &byte, 1),
        gacc_session_save(nullptr, "x"), gacc_session_checkpoint(nullptr, "x"),
        gacc_session_resume(nullptr, "x")})
    wrong(error, "the session is null");
  EXPECT_EQ(gacc_session_launches(nullptr), 0);
  begin();
  wrong(gacc_session_load(run_, nullptr), "null");
  wrong(gacc_session_step(run_, nullptr, 2, 4), "null");
  wrong(gacc_session_train(run_, arrays().data(), 2, 4, nullptr), "null");
  wrong(gacc_session_end_epoch(run_, nullptr), "null");
  wrong(gacc_session_eval(run_, nullptr, 2, 4), "null");
  wrong(gacc_session_eval_end(run_, nullptr), "null");
  wrong(gacc_session_predict(run_, arrays().data(), 2, 4, nullptr, 32), "null");
  wrong(gacc_session_predict(run_, nullptr, 2, 4, &output, 4), "null");
  wrong(gacc_session_next_token(run_, nullptr, 1, nullptr, &token), "no token");
  wrong(gacc_session_read(run_, nullptr, &byte, 1), "null");
  wrong(gacc_session_read(run_, "fc.weight", nullptr, 24), "null");
  wrong(gacc_session_write(run_, nullptr, &byte, 1), "null");
  wrong(gacc_session_write(run_, "fc.weight", nullptr, 24), "null");
  wrong(gacc_session_save(run_, nullptr), "null");
  wrong(gacc_session_save_as(run_, nullptr, nullptr), "null");
  int better = 0;
  double best = NAN;
  wrong(gacc_session_evaluated(run_, &evaluation, nullptr, &best, &better), "null");
  wrong(gacc_session_evaluated(run_, &evaluation, "loss", nullptr, &better), "null");
  wrong(gacc_session_evaluated(run_, &evaluation, "loss", &best, nullptr), "null");
  wrong(gacc_session_checkpoint(run_, nullptr), "null");
  wrong(gacc_session_resume(run_, nullptr), "null");
  gacc_array array = arrays()[0];
  array.data = nullptr;
  wrong(gacc_session_step(run_, &array, 1, 4), "array 0 is null");
  EXPECT_EQ(gacc_session_launches(run_), 0);
}

TEST_F(LibraryTest, Init) {
  run_ = open();
  wrong(gacc_session_init(run_, -1, 0), "at least 0");
  wrong(gacc_session_init(run_, 1, -1), "at least 0");
  good(gacc_session_init(run_, 1, 0));
  const std::vector<float> first = weight(run_);
  good(gacc_session_init(run_, 2, 0));
  EXPECT_NE(weight(run_), first);
  good(gacc_session_step(run_, arrays().data(), 2, 4));
  good(gacc_session_init(run_, 1, 0));
  EXPECT_EQ(weight(run_), first);
  EXPECT_EQ(gacc_session_launches(run_), 0);
}

TEST_F(LibraryTest, SchedulesInEpochsNeedTheirLength) {
  open_with({"schedule.type=cosine", "schedule.unit=epochs", "schedule.total=2"});
  wrong(gacc_session_init(run_, 1, 0), "counts epochs");
  good(gacc_session_init(run_, 1, 16));
  window(run_);
  good(gacc_session_update(run_, nullptr));
}

TEST_F(LibraryTest, SchedulesOfTheRunNeedItsLength) {
  gacc_step* step = nullptr;
  const char* const sets[] = {"schedule.type=cosine", "schedule.total=run", "schedule.warmup=50%"};
  const gacc_compile_options options = {sets, 3, nullptr, 0, 0, nullptr, 0};
  good(gacc_compile_text(kModel, "m", &options, &step));
  good(gacc_session_open(step, "cpu", nullptr, &run_));
  wrong(gacc_session_expect(run_, 4, nullptr, 0), "comes after gacc_session_init");
  good(gacc_session_init(run_, 1, 0));
  wrong(gacc_session_step(run_, arrays().data(), 2, 4), "gacc_session_expect");
  wrong(gacc_session_expect(run_, 0, nullptr, 0), "an update at least");
  char remark[200] = "?";
  good(gacc_session_expect(run_, 4, remark, sizeof remark));
  EXPECT_STREQ(remark, "");
  const double lr = 0.01;  // kModel's
  for (const double part : {0.5, 1.0, 1.0, 0.5}) {
    window(run_);
    gacc_window done;
    good(gacc_session_update(run_, &done));
    EXPECT_NEAR(done.lr, lr * part, 1e-8);
  }
  const std::string folder = folder_ + "/run";
  good(gacc_session_checkpoint(run_, folder.c_str()));
  gacc_session* next = nullptr;  // goes on with the length that it had
  good(gacc_session_open(step, "cpu", nullptr, &next));
  good(gacc_session_resume(next, folder.c_str()));
  good(gacc_session_step(next, arrays().data(), 2, 4));
  good(gacc_session_expect(next, 8, remark, sizeof remark));
  EXPECT_NE(std::string(remark).find("which was 4 updates before the checkpoint"), std::string::npos);
  good(gacc_session_close(next));
  gacc_step_free(step);
}

TEST_F(LibraryTest, ASchedulesOtherLengthIsRemarkedOn) {
  open_with({"schedule.type=linear", "schedule.total=9"});
  good(gacc_session_init(run_, 1, 0));
  char remark[200];
  good(gacc_session_expect(run_, 9, remark, sizeof remark));
  EXPECT_STREQ(remark, "");
  good(gacc_session_expect(run_, 30, remark, sizeof remark));
  EXPECT_NE(std::string(remark).find("schedule.total is 9 updates, and the run has 30"), std::string::npos);
  good(gacc_session_expect(run_, 5, remark, 15));
  EXPECT_STREQ(remark, "schedule.total");
  good(gacc_session_expect(run_, 5, nullptr, 0));
}

TEST_F(LibraryTest, Arrays) {
  begin();
  const auto refused = [&](auto change, const char* words, int64_t samples = 4) {
    std::vector<gacc_array> given = arrays();
    change(given);
    wrong(gacc_session_step(run_, given.data(), given.size(), samples), words, GACC_FAILED);
    wrong(gacc_session_eval(run_, given.data(), given.size(), samples), words, GACC_FAILED);
  };
  const float bad[4][3] = {{0, std::numeric_limits<float>::infinity()}};
  const int32_t label[4] = {0, 1, 2, 0};
  refused([](auto& given) { given.pop_back(); }, "there is no array for the input \"x\"");
  refused([](auto& given) { given[0].name = "lable"; }, "did you mean \"label\"");
  refused([](auto& given) { given[0] = given[1]; }, "given twice");
  refused([](auto& given) { given[1].dtype = "f16"; }, "there is no type \"f16\"");
  refused([](auto& given) { given[0].dtype = "f32"; }, "is no whole number");
  refused([](auto& given) { --given[1].bytes; }, "4 samples of 3 elements of u8 are 12 bytes, 11 were given");
  refused([&](auto& given) { given[0].data = label; }, "element 0 of sample 2");
  refused([&](auto& given) { given[1] = {"x", "f32", bad, sizeof bad}; }, "element 1 of sample 0");
  refused([](auto&) {}, "1 to 4 samples, 0 were given", 0);
  refused([](auto&) {}, "1 to 4 samples, 5 were given", 5);
  EXPECT_EQ(gacc_session_launches(run_), 0);
  good(gacc_session_step(run_, arrays(3).data(), 2, 3));
}

TEST_F(LibraryTest, TypesOfDataGiveTheSameBits) {
  float f32[4][3];
  double f64[4][3];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 3; ++j) f64[i][j] = f32[i][j] = static_cast<float>(x_[i][j]) / 255.0F;
  std::vector<float> first;
  for (const gacc_array& x :
       {arrays()[1], gacc_array{"x", "f32", f32, sizeof f32}, gacc_array{"x", "f64", f64, sizeof f64}}) {
    gacc_session* run = open();
    good(gacc_session_init(run, 7, 0));
    const gacc_array both[] = {x, arrays()[0]};
    for (int i = 0; i < 2; ++i) good(gacc_session_step(run, both, 2, 4));
    good(gacc_session_update(run, nullptr));
    if (first.empty()) first = weight(run);
    EXPECT_EQ(weight(run), first) << x.dtype;
    good(gacc_session_close(run));
  }
}

TEST_F(LibraryTest, AWindow) {
  begin();
  gacc_window report;
  wrong(gacc_session_update(run_, &report), "the window has no launch");
  const std::vector<float> before = weight(run_);
  window(run_);
  EXPECT_EQ(gacc_session_launches(run_), 2);
  wrong(gacc_session_step(run_, arrays().data(), 2, 4), "the window has its 2 launches");
  EXPECT_EQ(weight(run_), before);
  good(gacc_session_update(run_, &report));
  EXPECT_EQ(gacc_session_launches(run_), 0);
  EXPECT_EQ(report.launches, 2);
  EXPECT_EQ(report.samples, 8);
  EXPECT_EQ(report.applied, 1);
  EXPECT_EQ(report.skipped, 0);
  EXPECT_NEAR(report.lr, 0.01, 1e-8);
  EXPECT_GT(report.loss, 0);
  EXPECT_GT(report.grad_norm, 0);
  EXPECT_NE(weight(run_), before);
}

TEST_F(LibraryTest, AnEpochWhoseLengthOnlyItsEndTells) {
  gacc_session* other = begin();
  window(other);
  good(gacc_session_update(other, nullptr));
  good(gacc_session_step(other, arrays().data(), 2, 4));
  good(gacc_session_update(other, nullptr));
  const std::vector<float> wanted = weight(other);
  good(gacc_session_close(other));
  begin();
  gacc_window closed;
  std::vector<int64_t> launches;
  for (int i = 0; i < 3; ++i) {
    good(gacc_session_train(run_, arrays().data(), 2, 4, &closed));
    launches.push_back(closed.launches);
  }
  good(gacc_session_end_epoch(run_, &closed));
  launches.push_back(closed.launches);
  EXPECT_EQ(launches, (std::vector<int64_t>{0, 2, 0, 1}));  // the tail is flushed
  EXPECT_EQ(weight(run_), wanted);
  good(gacc_session_end_epoch(run_, &closed));  // of an epoch without a launch
  EXPECT_EQ(closed.launches, 0);
  window(run_);
  wrong(gacc_session_train(run_, arrays().data(), 2, 4, &closed), "the window has its 2 launches");
}

TEST_F(LibraryTest, WeightsThatAreNotFiniteAreNotSaved) {
  begin();
  good(gacc_session_save(run_, path("w").c_str()));
  std::vector<float> values = weight(run_);
  values[4] = std::numeric_limits<float>::quiet_NaN();
  good(gacc_session_write(run_, "fc.weight", values.data(), values.size() * sizeof(float)));
  wrong(gacc_session_save(run_, path("w").c_str()),
        "w is not written: tensor \"fc.weight\" holds nan at [1, 1]", GACC_FAILED);
  wrong(gacc_session_checkpoint(run_, path("c").c_str()), "is not written: tensor \"fc.weight\"",
        GACC_FAILED);
  good(gacc_session_load(run_, path("w").c_str()));  // as it was
}

TEST_F(LibraryTest, AGradientThatIsNotFiniteEndsTheSession) {
  begin();
  const std::vector<float> huge(6, std::numeric_limits<float>::infinity());
  good(gacc_session_write(run_, "fc.weight", huge.data(), huge.size() * sizeof(float)));
  window(run_);
  const char* words = "not finite";
  wrong(gacc_session_update(run_, nullptr), words, GACC_FAILED);
  wrong(gacc_session_step(run_, arrays().data(), 2, 4), words, GACC_FAILED);
}

TEST_F(LibraryTest, Evaluation) {
  begin();
  gacc_evaluation first, second;
  wrong(gacc_session_eval_end(run_, &first), "nothing is evaluated");
  for (gacc_evaluation* each : {&first, &second}) {
    good(gacc_session_eval(run_, arrays().data(), 2, 4));
    good(gacc_session_eval(run_, arrays(2).data(), 2, 2));
    good(gacc_session_eval_end(run_, each));
  }
  EXPECT_EQ(first.samples, 6);
  EXPECT_EQ(first.counted, 6);
  EXPECT_EQ(first.loss, second.loss);
  ASSERT_EQ(first.metrics, 1U);
  EXPECT_STREQ(first.metric[0].name, "accuracy");
  EXPECT_TRUE(first.metric[0].value >= 0 && first.metric[0].value <= 1);
}

// Larger accuracies, smaller losses, and never a NaN.
TEST_F(LibraryTest, WhichEvaluationIsTheBest) {
  begin();
  gacc_evaluation evaluation;
  good(gacc_session_eval(run_, arrays().data(), 2, 4));
  good(gacc_session_eval_end(run_, &evaluation));
  int better = 0;
  double loss = NAN, accuracy = NAN;
  wrong(gacc_session_evaluated(run_, nullptr, "acuracy", &loss, &better), "did you mean \"accuracy\"?");
  good(gacc_session_evaluated(run_, nullptr, "accuracy", &accuracy, &better));
  EXPECT_TRUE(std::isnan(accuracy));
  const std::tuple<double, double, bool, bool> steps[] = {{NAN, NAN, false, false}, {2, 0.5, true, true},
                                                          {2, 0.5, false, false},   {1, 0.25, true, false},
                                                          {NAN, NAN, false, false}, {3, 0.75, false, true}};
  for (const auto& [of_loss, of_accuracy, loss_is, accuracy_is] : steps) {
    evaluation.loss = of_loss;
    evaluation.metric[0].value = of_accuracy;
    good(gacc_session_evaluated(run_, &evaluation, "loss", &loss, &better));
    EXPECT_EQ(better != 0, loss_is);
    good(gacc_session_evaluated(run_, &evaluation, "accuracy", &accuracy, &better));
    EXPECT_EQ(better != 0, accuracy_is);
  }
  EXPECT_EQ(loss, 1);
  EXPECT_EQ(accuracy, 0.75);
}

// Any number of samples, launch by launch; the window and an evaluation under way do not notice.
TEST_F(LibraryTest, Predict) {
  gacc_step_info info;
  good(gacc_step_info_of(step_, &info));
  EXPECT_STREQ(info.output.dtype, "f32");
  ASSERT_EQ(info.output.axes, 1U);
  EXPECT_EQ(info.output.shape[0], 2);
  EXPECT_EQ(info.output.bytes, 8);
  begin();
  const std::vector<float> w = weight(run_);
  float bias[2];
  good(gacc_session_read(run_, "fc.bias", bias, sizeof bias));
  std::vector<unsigned char> x(7 * 3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<unsigned char>(i * 11);
  std::vector<float> outputs(7 * 2);
  gacc_array one = {"x", "u8", x.data(), x.size()};
  const auto predict = [&](int64_t samples, size_t bytes) {
    return gacc_session_predict(run_, &one, 1, samples, outputs.data(), bytes);
  };
  good(gacc_session_step(run_, arrays().data(), 2, 4));
  good(gacc_session_eval(run_, arrays().data(), 2, 4));
  good(predict(7, 56));
  for (size_t i = 0; i < 7; ++i)
    for (size_t j = 0; j < 2; ++j) {
      double sum = bias[j];
      for (size_t k = 0; k < 3; ++k)
        sum += (x[i * 3 + k] / 255.0 - 0.5) / 0.25 * static_cast<double>(w[j * 3 + k]);
      EXPECT_NEAR(outputs[i * 2 + j], sum, 1e-5);
    }
  EXPECT_EQ(gacc_session_launches(run_), 1);
  gacc_evaluation evaluation;
  good(gacc_session_eval_end(run_, &evaluation));
  EXPECT_EQ(evaluation.samples, 4);
  wrong(predict(7, 55), "7 samples are 56 bytes, 55 were given");
  wrong(predict(0, 0), "at least one sample");
  wrong(predict(std::numeric_limits<int64_t>::max(), 56), "at least one sample");
  one.bytes = 20;
  wrong(predict(7, 56), "20 bytes are not of 7 samples", GACC_FAILED);
  one.name = "y";
  one.bytes = 21;
  wrong(predict(7, 56), "the model has no input", GACC_FAILED);
  wrong(gacc_session_predict(run_, nullptr, 0, 7, outputs.data(), 56), "no array for the input \"x\"",
        GACC_FAILED);
}

TEST_F(LibraryTest, TokensThatFollow) {
  const char* model = R"(
model = { name = "words" }
inputs.tokens = { shape = [8], dtype = "i32", range = 11 }
inputs.next = { shape = [8], dtype = "i32", range = 11 }
loss = { type = "cross_entropy", target = "next" }
train = { micro_batch = 1 }
optimizer = { type = "sgd", lr = 0.1 }
[[layers]]
type = "embedding"
vocab = 11
features = 6
init = { normal = 3.0 }
[[layers]]
type = "position_embedding"
init = { normal = 3.0 }
[[layers]]
type = "attention"
heads = 2
causal = true
[[layers]]
type = "linear"
features = 11
)";
  gacc_step* step = nullptr;
  good(gacc_compile_text(model, "words", nullptr, &step));
  gacc_session* run = nullptr;
  good(gacc_session_open(step, "cpu", nullptr, &run));
  good(gacc_session_init(run, 3, 0));
  // The most likely token by the logits of the whole window, and by what is kept of the texts before.
  const auto likeliest = [&](const std::vector<int32_t>& text) {
    std::vector<int32_t> window = text;
    window.resize(8);
    std::vector<float> logits(8 * 11);
    const gacc_array input = {"tokens", "i32", window.data(), 32};
    good(gacc_session_predict(run, &input, 1, 1, logits.data(), logits.size() * sizeof(float)));
    const auto row = logits.begin() + (std::ssize(text) - 1) * 11;
    return static_cast<int32_t>(std::max_element(row, row + 11) - row);
  };
  const std::vector<std::vector<int32_t>> texts = {{1},    {1, 2, 3},    {1, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8},
                                                   {1, 2}, {1, 9, 3, 4}, {10, 9},   {1, 9, 3, 4, 0}};
  std::vector<int32_t> alone, kept;
  for (const auto& text : texts) alone.push_back(likeliest(text));
  for (const auto& text : texts) {
    good(gacc_session_next_token(run, text.data(), text.size(), nullptr, nullptr));
    good(gacc_session_next_token(run, text.data(), text.size(), nullptr, &kept.emplace_back()));
  }
  EXPECT_EQ(kept, alone);
  // Others are drawn, the same ones from a seed.
  std::set<int32_t> drawn;
  for (int64_t seed = 0; seed < 40; ++seed) {
    const gacc_draw_options how = {5, 3, 1, seed};
    int32_t first = 0, again = 0;
    good(gacc_session_next_token(run, texts[1].data(), 3, &how, &first));
    good(gacc_session_next_token(run, texts[1].data(), 3, &how, &again));
    EXPECT_EQ(first, again);
    drawn.insert(first);
  }
  EXPECT_EQ(drawn.size(), 3U);
  int32_t token = 0;
  const int32_t unknown = 11;
  wrong(gacc_session_next_token(run, &unknown, 1, nullptr, &token), "knows 0 to 10", GACC_FAILED);
  for (const gacc_draw_options& how :
       {gacc_draw_options{-1, 0, 1, 0}, {1, -1, 1, 0}, {1, 0, 0, 0}, {1, 0, 1, -1}})
    wrong(gacc_session_next_token(run, texts[0].data(), 1, &how, &token), "at least 0");
  good(gacc_session_close(run));
  gacc_step_free(step);
  begin();
  wrong(gacc_session_next_token(run_, &token, 1, nullptr, &token), "models of tokens", GACC_FAILED);
}

TEST_F(LibraryTest, ReadAndWrite) {
  begin();
  std::vector<float> values = weight(run_);
  wrong(gacc_session_read(run_, "fc.wieght", values.data(), 24), "did you mean \"fc.weight\"");
  wrong(gacc_session_read(run_, "fc.weight", values.data(), 20), "has 24 bytes, 20 were given");
  wrong(gacc_session_write(run_, "fc.wieght", values.data(), 24), "did you mean");
  wrong(gacc_session_write(run_, "fc.weight", values.data(), 20), "has 24 bytes");
  values[3] = 42;
  good(gacc_session_write(run_, "fc.weight", values.data(), 24));
  EXPECT_EQ(weight(run_), values);
}

// With half copies of the parameters the step computes with what was written.
TEST_F(LibraryTest, WritingAParameterWritesItsHalfCopy) {
  open_with({"precision.compute=f16"});
  good(gacc_session_init(run_, 7, 0));
  const auto loss = [&] {
    gacc_evaluation evaluation;
    good(gacc_session_eval(run_, arrays().data(), 2, 4));
    good(gacc_session_eval_end(run_, &evaluation));
    return evaluation.loss;
  };
  const std::vector<float> zeros(6, 0);
  EXPECT_GT(std::abs(loss() - std::log(2.0)), 1e-3);
  good(gacc_session_write(run_, "fc.weight", zeros.data(), 24));
  good(gacc_session_write(run_, "fc.bias", zeros.data(), 8));
  EXPECT_NEAR(loss(), std::log(2.0), 1e-3);
}

TEST_F(LibraryTest, SaveAndLoad) {
  begin();
  window(run_);
  good(gacc_session_update(run_, nullptr));
  const std::vector<float> trained = weight(run_);
  wrong(gacc_session_save(run_, "/nonesuch/w"), "/nonesuch", GACC_FAILED);
  good(gacc_session_save(run_, path("w.safetensors").c_str()));
  good(gacc_session_init(run_, 1, 0));
  wrong(gacc_session_load(run_, "/nonesuch"), "/nonesuch", GACC_FAILED);
  EXPECT_NE(weight(run_), trained);
  good(gacc_session_load(run_, path("w.safetensors").c_str()));
  EXPECT_EQ(weight(run_), trained);
  gacc_save_options options = {0, 0, 0, "bf16"};
  good(gacc_session_save_as(run_, path("half").c_str(), &options));
  EXPECT_LT(std::filesystem::file_size(path("half")), std::filesystem::file_size(path("w.safetensors")));
  good(gacc_session_save_as(run_, path("again").c_str(), nullptr));
  EXPECT_EQ(std::filesystem::file_size(path("again")), std::filesystem::file_size(path("w.safetensors")));
  options.type = "f64";
  wrong(gacc_session_save_as(run_, path("none").c_str(), &options), "expected f32, bf16 or f16");
  options = {1, 0, 0, nullptr};
  wrong(gacc_session_save_as(run_, path("none").c_str(), &options), "has no adapters", GACC_FAILED);
  options = {0, 1, 0, nullptr};
  wrong(gacc_session_save_as(run_, path("none").c_str(), &options), "has no adapters", GACC_FAILED);
  wrong(gacc_session_save_as(run_, path("none/").c_str(), nullptr), "load the folder", GACC_FAILED);
  EXPECT_FALSE(std::filesystem::exists(path("none")));
}

TEST_F(LibraryTest, CheckpointInAnOpenWindow) {
  begin();
  window(run_);
  good(gacc_session_update(run_, nullptr));
  good(gacc_session_step(run_, arrays().data(), 2, 4));
  wrong(gacc_session_checkpoint(run_, "/dev/null/x"), "/dev/null/x", GACC_FAILED);
  good(gacc_session_checkpoint(run_, path("run").c_str()));
  gacc_session* other = open();
  wrong(gacc_session_resume(other, path("none").c_str()), "none", GACC_FAILED);
  good(gacc_session_resume(other, path("run").c_str()));
  for (gacc_session* each : {run_, other}) {
    EXPECT_EQ(gacc_session_launches(each), 1);
    good(gacc_session_step(each, arrays(3).data(), 2, 3));
    good(gacc_session_update(each, nullptr));
  }
  EXPECT_EQ(weight(other), weight(run_));
  good(gacc_session_close(other));
  // gacc-exec does not know where in its data it would be.
  good(gacc_step_save(step_, path("step.ptx").c_str()));
  std::ofstream(path("d.csv")) << "a,b,c,label\n1,2,3,0\n4,5,6,1\n";
  const std::string command = GACC_BIN "/gacc-exec " + path("step.ptx") +
                              " --device cpu --data csv:" + path("d.csv") + ",label=label --checkpoint " +
                              path("run") + " --resume 2> " + path("said");
  EXPECT_NE(std::system(command.c_str()), 0);
  std::ifstream file(path("said"));
  const std::string said{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(said.find("the position in a data set was none"), std::string::npos) << said;
}

// One thread, the same samples in the same order: gacc-exec's weights, bit for bit.
TEST_F(LibraryTest, AsGaccExec) {
  begin();
  std::string rows = "a,b,c,label\n";
  float x[8][3];
  int32_t labels[8];
  for (int i = 0; i < 8; ++i) {
    labels[i] = i % 2;
    for (int j = 0; j < 3; ++j) {
      x[i][j] = static_cast<float>((i * 5 + j * 3) % 7) / 4;
      rows += std::to_string(x[i][j]) + ",";
    }
    rows += std::to_string(labels[i]) + "\n";
  }
  std::ofstream(path("d.csv")) << rows;
  good(gacc_step_save(step_, path("step.ptx").c_str()));
  const std::string command =
      GACC_BIN "/gacc-exec " + path("step.ptx") +
      " --device cpu --threads 1 --quiet --seed 7 --epochs 3 --data csv:" + path("d.csv") +
      ",label=label --no-shuffle --save " + path("exec.w") + " > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 8; i += 4) {
      const gacc_array both[] = {{"x", "f32", x[i], sizeof x / 2},
                                 {"label", "i32", labels + i, sizeof labels / 2}};
      good(gacc_session_step(run_, both, 2, 4));
    }
    good(gacc_session_update(run_, nullptr));
  }
  const std::vector<float> mine = weight(run_);
  good(gacc_session_load(run_, path("exec.w").c_str()));
  EXPECT_EQ(weight(run_), mine);
}

TEST_F(LibraryTest, Threads) {
  begin();
  std::atomic<int> full = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::vector<float> values(6);
      for (int i = 0; i < 20; ++i) {
        if (gacc_session_step(run_, arrays().data(), 2, 4).kind != GACC_OK) ++full;
        gacc_session_update(run_, nullptr);
        EXPECT_EQ(gacc_session_read(run_, "fc.weight", values.data(), 24).kind, GACC_OK);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(full, 80);
  EXPECT_LE(gacc_session_launches(run_), 2);
}

// Eight threads open sessions, train, predict and close them, each other's too. GACC_THREAD_ROUNDS: what each does (40).
// A build with -fsanitize=thread says what this one would not show.
TEST_F(LibraryTest, SessionsAreClosedWhileOthersWork) {
  const char* const asked = std::getenv("GACC_THREAD_ROUNDS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 40;
  std::array<std::atomic<gacc_session*>, 3> shared{};
  std::atomic<int> done = 0, late = 0;
  const auto tell = [&](const gacc_error& error) {
    if (error.kind == GACC_OK) {
      ++done;
    } else {  // of another thread's doing
      ++late;
      EXPECT_EQ(error.kind, GACC_WRONG_CALL) << error.text;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      std::minstd_rand chance(t + 1);
      const std::vector<gacc_array> both = arrays();
      float outputs[8];
      for (int i = 0; i < rounds; ++i) {
        std::atomic<gacc_session*>& place = shared[chance() % shared.size()];
        gacc_session* const run = place;
        switch (chance() % 8) {
          case 0:
            tell(gacc_session_close(place.exchange(nullptr)));
            break;
          case 1:
            tell(gacc_session_close(run));  // perhaps with others
            break;
          case 2:
          case 3: {
            gacc_session* const mine = open();
            tell(gacc_session_init(mine, 7, 0));
            tell(gacc_session_close(place.exchange(mine)));
            break;
          }
          case 4:
            tell(gacc_session_update(run, nullptr));
            break;
          case 5:
            tell(gacc_session_train(run, both.data(), 2, 4, nullptr));
            break;
          default:
            tell(gacc_session_predict(run, both.data(), 2, 4, outputs, sizeof outputs));
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::atomic<gacc_session*>& place : shared) tell(gacc_session_close(place));
  EXPECT_GT(done, 0);
  EXPECT_EQ(gacc_session_launches(shared[0]), 0) << "of a closed session";
}

}  // namespace
