#include "runtime/run/rates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/text.h"

namespace gacc {

bool larger_is_better(std::string_view metric) {
  constexpr std::string_view larger[] = {"accuracy", "r2", "f1", "auc", "balanced_accuracy"};
  return std::ranges::find(larger, metric) != std::end(larger);
}

double metric_of(const EvalReport& report, const Plan& plan, std::string_view metric) {
  for (size_t i = 0; i < report.metrics.size(); ++i)
    if (plan.metrics[i] == metric) return report.metrics[i];
  return metric == "perplexity" ? std::exp(report.loss) : report.loss;
}

Status check_metric(const Plan& plan, const std::string& metric) {
  std::vector<std::string> known = plan.metrics;
  known.insert(known.begin(), "loss");
  if (std::ranges::find(known, metric) != known.end()) return {};
  return Status::error("the model has no such metric{} (it has {})", hint(metric, known), listed(known));
}

bool is_better(std::string_view metric, double value, double best) {
  if (std::isnan(value) || std::isnan(best)) return !std::isnan(value);
  return larger_is_better(metric) ? value > best : value < best;
}

PlateauState after_evaluation(const PlateauRules& rules, PlateauState state, double value) {
  const bool more_is_better = larger_is_better(rules.metric);
  // r2 may be negative; progress is towards 0 then.
  const bool away = more_is_better == (state.best >= 0);
  const double mark = state.best * (away ? 1 + rules.threshold : 1 - rules.threshold);
  // The first value is progress, unless it is none; a NaN never is.
  const bool better = !state.seen ? !std::isnan(value) : more_is_better ? value > mark : value < mark;
  if (better) {
    state = {true, value, 0, state.cuts};
  } else if (++state.bad > rules.patience) {
    state.bad = 0;
    ++state.cuts;
  }
  return state;
}

int64_t updates_per_epoch(const WindowRules& rules) {
  const int64_t launches = rules.launches_per_epoch(), whole = launches / rules.accumulate;
  const bool rest = rules.tail != Tail::drop && launches % rules.accumulate != 0;
  return std::max<int64_t>(1, whole + rest);
}

Status begin_rates(Session& session, const Plan& plan, const WindowRules& rules) {
  if (!plan.find(state::updates_per_epoch)) return {};
  const int64_t updates = std::min<int64_t>(updates_per_epoch(rules), std::numeric_limits<int32_t>::max());
  return session.write_state(state::updates_per_epoch, static_cast<int32_t>(updates));
}

namespace {

// The schedule of a run, in updates or in epochs.
struct Lengths {
  int64_t total = 0, warmup = 0;
};

Lengths lengths_of(const PlanLength& said, int64_t updates, int64_t updates_per_epoch) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t each = said.epochs ? updates_per_epoch : 1;
  const int64_t total = std::min(updates / each + (updates % each > 0 ? 1 : 0), kMost);
  if (said.warmup_share == 0) return {total, said.warmup};
  constexpr double kRounding = 1e-9;  // 7 % of 100 are 7
  const double part = std::ceil(static_cast<double>(total) * said.warmup_share / 100 - kRounding);
  return {total, std::clamp<int64_t>(static_cast<int64_t>(part), 0, std::max<int64_t>(0, total - 1))};
}

}  // namespace

Status check_length(const Plan& plan, int64_t updates, int64_t updates_per_epoch) {
  if (!plan.length || plan.length->total != 0) return {};
  const Lengths run = lengths_of(*plan.length, updates, updates_per_epoch);
  if (run.total > run.warmup) return {};
  const char* const unit = plan.length->epochs ? "epoch" : "update";
  return Status::error(
      "schedule.total is \"run\", and the run has {}, not more than the warmup of {}: lower "
      "schedule.warmup, or give a share of the run, such as warmup = \"3%\"",
      counted(run.total, unit), run.warmup);
}

namespace {

// Says that the rate vanishes long before the run ends, as where a schedule by epochs was meant; "" where not.
// `each`: updates of what the schedule counts.
std::string vanishing(const PlanDecay& decay, int64_t updates, int64_t each) {
  constexpr double kNothing = 1e-6;  // of optimizer.lr
  constexpr double kLong = 0.2;      // of the run
  if (decay.gamma <= 0 || decay.gamma >= 1) return {};
  const double steps = std::ceil(std::log(kNothing) / std::log(decay.gamma));
  const double from = (static_cast<double>(decay.warmup) + steps * static_cast<double>(decay.each)) *
                      static_cast<double>(each);
  if (from > (1 - kLong) * static_cast<double>(updates)) return {};
  return fmt::format(
      "the schedule multiplies the rate by {} every {}: after {} of {} it is less than a millionth of "
      "optimizer.lr{}",
      decay.gamma, counted(decay.each, decay.epochs ? "epoch" : "update"), static_cast<int64_t>(from),
      counted(updates, "update"),
      decay.epochs ? "" : "; schedule.unit = \"epochs\" counts epochs instead of updates");
}

}  // namespace

Result<std::string> tell_length(Session& session, const Plan& plan, int64_t updates) {
  int64_t each = 1;
  if ((plan.decay && plan.decay->epochs) || (plan.length && plan.length->epochs))
    each = std::max(1, GACC_TRY(session.read_state<int32_t>(state::updates_per_epoch)));
  if (plan.decay)
    if (std::string text = vanishing(*plan.decay, updates, each); !text.empty()) return text;
  if (!plan.length) return std::string();
  const PlanLength& said = *plan.length;
  const Lengths run = lengths_of(said, updates, each);
  const char* const unit = said.epochs ? "epoch" : "update";
  const auto differs = [&](int64_t total, std::string_view what) {
    if (total == run.total) return std::string();
    const std::string all = counted(run.total, unit);
    if (total > run.total)
      return fmt::format("{}, and the run ends after {}: the rate will not have come down", what, all);
    return fmt::format("{}, and the run has {}: the last {} have the lowest rate", what, all,
                       run.total - total);
  };
  if (!said.last.empty()) {
    if (run.total > said.total) return std::string();
    return fmt::format("{} of the schedule comes after {}, and the run ends after {}", said.last,
                       counted(said.total, unit), counted(run.total, unit));
  }
  if (said.total > 0) {
    const std::string text =
        differs(said.total, fmt::format("schedule.total is {}", counted(said.total, unit)));
    if (text.empty()) return text;
    if (run.total <= run.warmup)
      return fmt::format(
          "{}; --pause-at {} ends this process in the middle of the whole run, or compile with "
          "schedule.total = {} and a schedule.warmup below that (it is {})",
          text, run.total, run.total, run.warmup);
    return fmt::format("{}; compile with schedule.total = {}, or \"run\", which is the length of any run",
                       text, run.total);
  }
  GACC_TRY(check_length(plan, updates, each));
  const int64_t before = GACC_TRY(session.read_state<int32_t>(state::run_total));
  GACC_TRY(session.write_state(state::run_total, static_cast<int32_t>(run.total)));
  GACC_TRY(session.write_state(state::run_warmup, static_cast<int32_t>(run.warmup)));
  const int64_t made = GACC_TRY(session.read_state<int32_t>(state::updates));
  if (before == 0 || before == run.total || made == 0) return std::string();
  return fmt::format(
      "schedule.total is \"run\", which was {} before the checkpoint: after {} the rates go on as those "
      "of a run of {}",
      counted(before, unit), counted(made, "update"), counted(run.total, unit));
}

Status evaluated(Session& session, const Plan& plan, const EvalReport& report) {
  if (!plan.plateau) return {};
  const double value = metric_of(report, plan, plan.plateau->metric);
  PlateauState now;
  now.seen = GACC_TRY(session.read_state<int32_t>(state::plateau_seen)) != 0;
  now.best = GACC_TRY(session.read_state<float>(state::plateau_best));
  now.bad = GACC_TRY(session.read_state<int32_t>(state::plateau_bad));
  now.cuts = GACC_TRY(session.read_state<int32_t>(state::plateau_cuts));
  now = after_evaluation(*plan.plateau, now, value);
  GACC_TRY(session.write_state(state::plateau_seen, int32_t{now.seen}));
  GACC_TRY(session.write_state(state::plateau_best, static_cast<float>(now.best)));
  GACC_TRY(session.write_state(state::plateau_bad, now.bad));
  return session.write_state(state::plateau_cuts, now.cuts);
}

}  // namespace gacc
