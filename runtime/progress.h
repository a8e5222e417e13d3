// What the user sees while a run goes on: one line on standard error, redrawn at most ten times a second when
// that is a terminal, and a lasting line on standard output for every epoch and evaluation. Quiet runs show
// neither.
#pragma once
#include <chrono>
#include <string>
#include <string_view>

#include "runtime/plan.h"
#include "runtime/train.h"

namespace gacc {

// The figures of the moving line.
struct ProgressState {
  int64_t epoch = 0, epochs = 0;    // epochs 0: not limited
  int64_t update = 0, updates = 0;  // updates 0: not limited
  float loss = 0, lr = 0;
  double samples_per_second = 0;
  double seconds_left = -1;  // below 0: unknown
  float scale = 1;           // of the loss
};

// "epoch 1/2  update 17  loss 0.4312  lr 0.001  eff. batch 128 (32 × 4)  loss scale 1  48200 samples/s  0:12
// left"
std::string progress_line(const ProgressState& state, const Plan& plan);
std::string epoch_text(const EpochReport& report);
std::string evaluation_text(const EvaluationReport& report, const Plan& plan);
std::string duration_text(double seconds);  // "0:07", "12:05", "3:04:05"
// At most `columns` characters of UTF-8 text.
std::string_view clip_columns(std::string_view text, size_t columns);

class Progress {
 public:
  Progress(const Plan& plan, bool quiet);
  ~Progress() { clear(); }

  // Before the first launch, with the run's limits and about how many launches it will make.
  void begin(const TrainOptions& options, double expected_launches);
  void launched(const LaunchReport& report);
  void updated(const UpdateReport& report);
  // Removes the moving line, prints a lasting one on standard output.
  void say(std::string_view line);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const LaunchReport& report, Clock::time_point now);

  const Plan& plan_;
  bool quiet_, terminal_, drawn_ = false;
  ProgressState state_;
  double expected_launches_ = 0;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  int64_t last_samples_ = 0, first_launches_ = 0;  // first: made by the processes before, when resumed
};

}  // namespace gacc
