// The training loop: epochs of launches, windows of launches closed by updates, tails, limits and
// evaluations. It reports what happens to an observer (the log, the display) and decides nothing about files
// or the terminal.
//
// The figures:
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
#include <optional>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/ranks/collective.h"
#include "runtime/reports.h"
#include "runtime/session/session.h"

namespace gacc {

struct TrainOptions : DataOrder {
  // Limits; the first one reached ends the run. Without `epochs` and with another limit the run goes on over
  // as many epochs as that takes; without any, it is the plan's number of epochs.
  std::optional<int64_t> epochs, updates, launches;
  // Ends the process after so many updates, and is no limit of the whole run.
  std::optional<int64_t> pause_at;
  // The updates of the whole run, of which this is a part; none: those that the limits allow.
  std::optional<int64_t> length;
  int64_t eval_every = 0;  // also evaluate after every that many updates; 0: only after epochs and at the end
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
  // The measure of the best evaluation: a metric of the plan, or "loss".
  std::string best = "loss";
  // Called after an evaluation that is better than all before it. May be empty.
  std::function<Status()> save_best;
  std::optional<int64_t> patience;  // the run ends after so many evaluations in a row without a better one
  bool keeps_best() const { return save_best || patience; }
  // The state of an earlier run; the session's buffers must be as they were then. Null: at the beginning. The
  // limits count from the beginning of the earlier run.
  const TrainState* resume = nullptr;
};

// An error of an observer ends the run with that error.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual Status launched(const LaunchReport&) { return {}; }
  virtual Status updated(const UpdateReport&) { return {}; }
  virtual Status epoch_done(const EpochReport&) { return {}; }
  virtual Status evaluated(const EvaluationReport&) { return {}; }
  // Once at most, before the first launch: what the user should know of the schedule's length.
  virtual void schedule_differs(const std::string& /*text*/) {}
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
// change, when no update could ever happen, or when the schedule cannot follow so short a run.
Status check_can_update(const Plan& plan, int64_t samples, const TrainOptions& options);

// The epochs that the options and the plan allow; none: no limit.
std::optional<int64_t> epoch_limit(const Plan& plan, const TrainOptions& options);

// Returns the updates of the whole run: what its limits allow, if no window is skipped or without counted targets.
int64_t updates_of_run(const Plan& plan, int64_t samples, const TrainOptions& options);

// About how many launches the whole run will make: for the display.
double expected_launches(const Plan& plan, int64_t samples, const TrainOptions& options);

}  // namespace gacc
