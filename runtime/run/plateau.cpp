#include "runtime/run/plateau.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gacc {

bool larger_is_better(std::string_view metric) { return metric == "accuracy" || metric == "r2"; }

double metric_of(const EvalReport& report, const Plan& plan, std::string_view metric) {
  for (size_t i = 0; i < report.metrics.size(); ++i)
    if (plan.metrics[i] == metric) return report.metrics[i];
  return metric == "perplexity" ? std::exp(report.loss) : report.loss;
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
