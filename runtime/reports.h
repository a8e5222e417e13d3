// The reports of a run on its windows, epochs and evaluations, and its state between two launches. Data alone: the
// log and the display show them, checkpoints keep them, and the training loop (runtime/run/train.h) makes them.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/safetensors.h"

namespace gacc {

// The device's sums since the window began.
struct WindowSums {
  double loss = 0;   // over the counted elements
  double count = 0;  // of counted elements; where they have weights, the sum of those
};

// One closed window.
struct WindowReport {
  int64_t launches = 0;
  int64_t samples = 0;
  WindowSums sums;
  bool applied = false;       // the parameters moved
  bool finite = true;         // false: a gradient was not, and nothing but the report has changed
  std::string bad_parameter;  // when not finite: the first parameter (plan order) whose gradient is not;
                              // empty when only their common norm overflows, and where windows are
                              // skipped, for that clears the gradients
  float loss = 0;             // mean over the counted elements
  float norm = 0;             // global norm of the mean gradient, before clipping
  float lr = 0;
  float scale = 1;       // of the loss, in this window
  float next_scale = 1;  // in the next one
  int32_t skips = 0;     // where windows are skipped: how many in a row, with this one
};

struct EvalReport {
  int64_t samples = 0;
  int64_t count = 0;              // of counted elements
  double loss = 0;                // mean over them; NaN when nothing was counted
  std::vector<double> metrics{};  // one for every Plan::metrics, in its order
  // Counts of samples whose target was class t and whose answer was class a, at t * (classes + 1) + a. Answer `classes`
  // is none, as of outputs that are not numbers. Empty where there are no classes, or too many.
  std::vector<int64_t> confusion{};
};

struct LaunchReport {    // queued, not necessarily finished
  int64_t epoch = 0;     // from 1
  int64_t launches = 0;  // of the run
  int64_t samples = 0;   // of the run
};

struct UpdateReport {
  int64_t epoch = 0;   // in which the window closed, from 1
  int64_t update = 0;  // windows tried so far, from 1
  WindowReport window;
  double seconds = 0;
};

struct EpochReport {
  int64_t epoch = 0;
  double loss = 0;                                // NaN when nothing was counted
  int64_t updates = 0, skipped = 0, samples = 0;  // of this epoch
  double seconds = 0;
};

struct EvaluationReport {
  int64_t epoch = 0;    // under way or just completed; 0 before any
  int64_t updates = 0;  // good ones so far
  EvalReport result;
  double seconds = 0;
  bool better = false;  // than all before it, where the run keeps the best

  // Multiplies each metric by its unit.
  void show_in(const std::vector<double>& units) {
    for (size_t i = 0; i < units.size(); ++i) result.metrics[i] *= units[i];
  }
};

// The best evaluation so far.
struct BestEvaluation {
  std::string metric;  // by which; empty: there was none
  double value = 0;
  int64_t updates = 0;  // good ones before it
  int64_t worse = 0;    // evaluations since then
};

// The numbers of what --recheck has compared.
struct RecheckCounts {
  int64_t every = 0;  // 0: nothing was to be
  int64_t launches = 0, updates = 0;
  std::string difference{};  // what has ended the run
};

struct TrainCounts {
  int64_t epochs = 0;   // completed
  int64_t updates = 0;  // good ones
  int64_t skipped = 0;
  int64_t launches = 0, samples = 0;
};

struct TrainResult : TrainCounts {
  double seconds = 0;  // everything, evaluations too
  bool interrupted = false;
  int64_t open_launches = 0;           // in the window that was open at the end and is not applied
  std::vector<NamedTensor> gradients;  // mean gradient of the open or the just closed window
  BestEvaluation best;
};

// The loop's place between two launches: everything that must outlive the process for a later one to go on
// with the same bits. What a loop keeps from one launch to the next belongs here, or into a state buffer of
// the plan, and in checkpoint.cpp's list of fields.
struct TrainState : TrainCounts {
  // Launches made of the epoch under way. 0: none has begun. All: its end is still to be reported.
  int64_t position = 0;
  int64_t window_launches = 0, window_samples = 0;  // of the open window
  bool evaluation_due = false;                      // to be made before anything else
  EpochReport epoch;                                // under way
  WindowSums epoch_sums;  // of the launches of this epoch that are in closed windows, or at its end
  WindowSums counted;     // the part of the open window that earlier epochs have counted (carry)
  EvaluationReport evaluation{0, -1, {}, 0, false};  // the last one
  BestEvaluation best;
  RecheckCounts recheck;
  double first_loss = std::numeric_limits<double>::quiet_NaN();  // of the first good update
  // Since the run began, in all its processes; the starts of window and epoch are in training seconds.
  double seconds = 0, evaluation_seconds = 0, window_start = 0, epoch_start = 0;
};

// The order in which a run goes through its training data.
struct DataOrder {
  bool shuffle = true;
  uint64_t seed = 0;  // of the shuffling
};

// The end of a log that was written so far: its size in bytes, and their CRC-32.
struct LogPosition {
  int64_t bytes = 0;
  uint32_t crc32 = 0;
};

}  // namespace gacc
