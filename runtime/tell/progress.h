// The display of a run while it goes on: one line on standard error, redrawn at most ten times a second when
// that is a terminal, else one on standard output every few seconds; and there a lasting line for every epoch
// and evaluation. Quiet runs show only the latter.
#pragma once
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/long_work.h"
#include "runtime/plan.h"
#include "runtime/reports.h"
#include "runtime/standard_streams.h"

namespace gacc {

// The figures of the moving line.
struct ProgressState {
  int64_t epoch = 0, epochs = 0;    // epochs 0: not limited
  int64_t update = 0, updates = 0;  // updates 0: not limited
  float loss = 0, lr = 0;
  double samples_per_second = 0;
  double seconds_left = -1;  // below 0: unknown
  float scale = 1;           // of the loss
  double done = -1;          // part of the run, 0 to 1; below 0: unknown
};

// "42 %  0:12 left  epoch 1/2  update 17  loss 0.4312  48200 samples/s  lr 0.001  eff. batch 128 (32 × 4)
// loss scale 1", as many of its figures as fit into so many columns.
std::string progress_line(const ProgressState& state, const Plan& plan, size_t columns);
// The lasting line of a run without a terminal: "epoch 1/2, update 17: loss 0.4312, 48200 samples/s, 42 %,
// 0:12 left".
std::string progress_text(const ProgressState& state);
std::string epoch_text(const EpochReport& report);
std::string evaluation_text(const EvaluationReport& report, const Plan& plan);
// The confusion matrix, a line a class, with the words that stand for classes in data where there are some; "" where
// the evaluation has none.
std::string confusion_text(const EvalReport& report, const Plan& plan);
// "memory: 131.2 MiB at most: the arena's 98.4 MiB as planned, and 32.8 MiB for the program, its code and the
// data", of this process. `host`: bytes of state that lies beside the arena. Empty where the system does not say.
std::string process_memory_text(int64_t arena, int64_t host);

class Progress {
 public:
  // `shows`: this process is the one that the user sees; others say nothing.
  Progress(const Plan& plan, bool quiet, bool shows = true);
  ~Progress() { clear(); }

  // Before the first launch, with the run's limits (0: none), about how many launches it will make, and what the
  // processes before have done.
  void begin(int64_t epochs, int64_t updates, double expected_launches, const TrainCounts& before);
  void launched(const LaunchReport& report);
  void updated(const UpdateReport& report);
  // Prints a line on a terminal, elsewhere before the first of say(): who waits there for a line waits for a result.
  void introduce(std::string line);
  // Removes the moving line, prints a lasting one on standard output.
  void say(std::string_view line);
  // The same on standard error.
  void warn(std::string_view line);
  void clear() {
    first_.reset();
    clear_moving_line();
  }

 private:
  using Clock = std::chrono::steady_clock;

  const Plan& plan_;
  bool quiet_, shows_, terminal_;
  ProgressState state_;
  std::string introduction_;       // that is still to be printed
  std::optional<LongWork> first_;  // until there is something to show
  double expected_launches_ = 0;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  int64_t last_samples_ = 0, first_launches_ = 0;  // first: made by the processes before, when resumed
};

}  // namespace gacc
