// The training loop: epochs of launches, windows of launches closed by updates, tails, limits and
// evaluations. It reports what happens to an observer (the log, the display) and decides nothing about files
// or the terminal.
//
// What the figures mean:
//  - A window in which nothing is counted makes no update: it is reported to nobody and gets no number.
//  - An epoch's loss is the sum over all its launches of the counted elements' losses, divided by their
//    number; each launch counts with the weights it ran with, in the epoch it ran in, whether or not its
//    window was applied (drop) or closed in that epoch (carry).
//  - Limits stop the run right after the launch or the update that reaches them. A window then open is not
//    applied, unless that launch ended an epoch under the tail "flush". The epoch then under way is reported
//    only if complete.
//  - `seconds` of windows and epochs are training time, without evaluations.
#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "runtime/collective.h"
#include "runtime/data/dataset.h"
#include "runtime/session.h"

namespace gacc {

struct TrainState;

struct TrainOptions {
  // Limits; the first one reached ends the run. Without `epochs` and with another limit the run goes on over
  // as many epochs as that takes; without any, it is the plan's number of epochs.
  std::optional<int64_t> epochs, updates, launches;
  int64_t eval_every = 0;  // also evaluate after every that many updates; 0: only after epochs and at the end
  bool shuffle = true;
  uint64_t seed = 0;  // of the shuffling
  // Fill TrainResult::gradients: a copy of all gradients at the end of every window.
  bool keep_gradients = false;
  std::function<bool()> interrupted;  // asked after every launch; true ends the run in order. May be empty
  // The other ranks, among whom the session's lanes are dealt; null: there are none. Ranks agree on the end of a
  // run where a window or an evaluation ends; until then one that has heard of it launches nothing more.
  Collective* ranks = nullptr;
  // Called with the loop's state, the session's buffers belonging to it, after every `checkpoint_every` good
  // updates (0: after every epoch), and at the end of the run, unless it fails. Its error ends the run. May
  // be empty.
  // With several lanes a state inside a window is that of the window's start, for which
  // `window_opens` was called last: what else belongs to the checkpoint should be kept then. May be empty.
  std::function<Status(const TrainState&)> checkpoint;
  std::function<void()> window_opens{};
  int64_t checkpoint_every = 0;
  // Which evaluation is the best: by this metric of the plan, or by "loss".
  std::string best = "loss";
  // Called after an evaluation that is better than all before it. May be empty.
  std::function<Status()> save_best;
  std::optional<int64_t> patience;  // the run ends after so many evaluations in a row without a better one
  bool keeps_best() const { return save_best || patience; }
  // Where an earlier run was; the session's buffers must be as they were then. Null: at the beginning. The
  // limits count from the beginning of the earlier run.
  const TrainState* resume = nullptr;
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
};

// The best evaluation so far.
struct BestEvaluation {
  std::string metric;  // by which; empty: there was none
  double value = 0;
  int64_t updates = 0;  // good ones before it
  int64_t worse = 0;    // evaluations since then
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

// Where the loop is between two launches: everything that must outlive the process for a later one to go on
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
  double first_loss = std::numeric_limits<double>::quiet_NaN();  // of the first good update
  // Since the run began, in all its processes; the starts of window and epoch are in training seconds.
  double seconds = 0, evaluation_seconds = 0, window_start = 0, epoch_start = 0;
};

// An error of an observer ends the run with that error.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual Status launched(const LaunchReport&) { return {}; }
  virtual Status updated(const UpdateReport&) { return {}; }
  virtual Status epoch_done(const EpochReport&) { return {}; }
  virtual Status evaluated(const EvaluationReport&) { return {}; }
  // Once at most: the loss of an epoch, or of the run's last update, is far above the first update's.
  virtual void diverged(int64_t /*epoch*/, double /*loss*/, double /*first_loss*/) {}
};

// Trains an initialised session on `data`, evaluating on `eval` unless it is null. A run that could never
// update is an error before the first launch. On error `result` holds what was done until then.
Status train(Session& session, const Plan& plan, const Dataset& data, const Dataset* eval,
             const TrainOptions& options, TrainObserver& observer, TrainResult& result);

// Evaluates the parameters as they are, once. `report` has the epoch and the updates of the caller.
Status evaluate_once(Session& session, const Plan& plan, const Dataset& eval, const TrainOptions& options,
                     EvaluationReport& report, bool& interrupted);

// The check that train makes first, for callers who have more to prepare: an error, with numbers and what to
// change, when no update could ever happen.
Status check_can_update(const Plan& plan, int64_t samples, const TrainOptions& options);

// About how many launches the whole run will make: for the display.
double expected_launches(const Plan& plan, int64_t samples, const TrainOptions& options);

}  // namespace gacc
