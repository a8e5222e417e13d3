// Facts that training tells the rates (docs/training.md), since the device cannot know them: how many updates an epoch
// has, for schedule.total = "run" how many the run makes, and for schedule.type = "plateau" what the evaluations
// found. All of it is kept in state buffers of the plan, so a checkpoint has it.
#pragma once
#include <string>

#include "runtime/plan.h"
#include "runtime/session/session.h"
#include "runtime/session/window.h"

namespace gacc {

// As torch.optim.lr_scheduler.ReduceLROnPlateau (relative threshold, no cooldown) counts.
struct PlateauState {
  bool seen = false;  // an evaluation came before
  double best = 0;    // of them
  int32_t bad = 0;    // evaluations in a row that were not better
  int32_t cuts = 0;   // of the rate
};
PlateauState after_evaluation(const PlateauRules& rules, PlateauState state, double value);

// True where a larger value of the metric or the loss is the better one.
bool larger_is_better(std::string_view metric);
// The value of a metric, or of "loss", in an evaluation.
double metric_of(const EvalReport& report, const Plan& plan, std::string_view metric);

// Checks that it is "loss" or a metric of the model.
Status check_metric(const Plan& plan, const std::string& metric);
// Returns whether an evaluation is better than all before it, of which `best` is the best; NaN: there is none. A NaN
// never is.
bool is_better(std::string_view metric, double value, double best);

// Updates of an epoch, at least 1: what schedule.unit = "epochs" divides by.
int64_t updates_per_epoch(const WindowRules& rules);

// Before the first launch.
Status begin_rates(Session& session, const Plan& plan, const WindowRules& rules);

// Checks that a run of so many updates in all has room for the warm-up of its schedule.
Status check_length(const Plan& plan, int64_t updates, int64_t updates_per_epoch);
// Tells the rates how many updates the run makes in all, after begin_rates or a checkpoint. Returns what a user
// should hear: that the schedule has another length, or that the run before had. "" for nothing.
Result<std::string> tell_length(Session& session, const Plan& plan, int64_t updates);
// After an evaluation.
Status evaluated(Session& session, const Plan& plan, const EvalReport& report);

}  // namespace gacc
