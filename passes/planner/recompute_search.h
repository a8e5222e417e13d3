// The recompute planner: the cheapest schedule it finds within a budget, with a proven bound beside it.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "passes/planner/bound.h"
#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

struct Recompute {
  bool feasible = false;
  bool proven = false;  // without a plan: that there is none
  int64_t base_peak = 0;
  double base_cost = 0;
  int64_t peak = 0;
  double cost = 0;
  double lower_bound = 0;  // of the cost, for every schedule with this order of first executions
  int64_t reruns = 0;
  std::vector<Step> schedule{};
  std::optional<RecomputePlan> choices{};  // that gave the schedule; a tiny graph is solved without any
  double gap() const { return base_cost > 0 ? (cost - lower_bound) / base_cost : 0; }
};

// Returns what every schedule with this order of first executions costs at least; the graph has a plan of that size.
double lower_bound(Bounds& bounds, int64_t budget);

// `effort` scales the work of the search (never seconds: the same input gives the same plan). 0: the first
// plan found. `above`: the plan of a larger budget. The search starts from it, and gives no plan that costs
// less, so that more memory never costs more. Several plans of one graph share its bounds.
Recompute plan_recompute(const Graph& graph, int64_t budget, int effort = 1,
                         const Recompute* above = nullptr);
Recompute plan_recompute(Bounds& bounds, int64_t budget, int effort = 1, const Recompute* above = nullptr);

}  // namespace gacc::passes::planner
