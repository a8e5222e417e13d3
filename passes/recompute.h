// Recompute as a promise: what was chosen, what it costs by the estimates, and how far from the optimum it can
// be. The pass itself is declared in passes/pass.h; docs/memory.md says how it works.
//
//   RecomputeReport report = recompute_report(planned, target);     // --plan, --report
//   std::vector<TradeOff> curve = trade_off(fused, options, 16);    // --report: budget against overhead
#pragma once
#include <map>

#include "passes/analysis/step_graph.h"
#include "passes/pass.h"
#include "passes/planner/recompute_search.h"

namespace gacc::passes {

// One value of the forward pass that is dropped and made again.
struct Remade {
  std::string value;     // "fc1": the original; its clones are fc1.r, ...
  int32_t segment = -1;  // of the first clone: those of one segment are made together
  int64_t times = 0;     // how often
  int64_t bytes = 0;     // of the value, as it lies in the arena; 0 when it is made in a register
  int64_t flops = 0;     // of all its clones
  double seconds = 0;    // estimated, of the clones' kernels, at the first value of each
};

inline constexpr size_t kLargeStep = 1000;  // operations of a step whose search takes long

struct RecomputeReport {
  std::string policy = "none";
  int64_t recomputed_ops = 0;       // clones in the step; reshapes are none
  int64_t extra_flops = 0;          // a launch
  double base_seconds = 0;          // of a launch without recompute, estimated
  double overhead = 0;              // fraction of base_seconds, clones counted as kernels of their own
  double overhead_lower_bound = 0;  // no schedule of these kernels in this order that fits costs less
  double gap() const { return overhead - overhead_lower_bound; }
  std::vector<Remade> values{};  // in the order of their first clone
};
RecomputeReport recompute_report(const ir::Module& planned, std::string_view target);

// One point of the curve: what the pass recompute gives for a budget.
struct TradeOff {
  int64_t budget = 0, arena = 0;  // bytes, all categories
  double overhead = 0;            // fraction of the step's time without recompute
  double lower_bound = 0;         // proven
};
// `points` budgets between the least that a plan was found for and what policy none needs, and `also` if that
// lies between them, ascending. `fused` is in phase fused, as the pass gets it. Deterministic.
std::vector<TradeOff> trade_off(const ir::Module& fused, const Options& options, int points,
                                int64_t also = 0);

// Returns the bytes that the step needs, proven: no plan of this module has a smaller arena.
int64_t least_arena(const StepGraph& step);

// A plan for the step within an arena of `budget` bytes.
struct StepPlan {
  bool feasible = false;
  bool proven = false;     // without a plan: that there is none
  ir::Module module{};     // in phase fused, with clones
  int64_t arena = 0;       // as plan-memory gives it
  double seconds = 0;      // of a launch, estimated
  double lower_bound = 0;  // of every plan in that budget
};

// Tells whether a plan for an arena of `budget` bytes is found by a hasty search. StepPlanner finds more, and takes
// longer. `bounds` are those of the step's graph.
bool is_found_hastily(const ir::Module& fused, const StepGraph& step, planner::Bounds& bounds,
                      int64_t budget);

// Plans of one step for any number of budgets: what was searched for one is known for the next. A larger
// budget never gives more seconds, and none where a smaller gives a plan. Keeps references to what it is made
// with.
//
// Levels of memory are the nodes of a binary tree over 0 .. the step's peak. A level's plan depends on the
// levels that the tree has around it, and on nothing else: not on the budget, not on what was asked before.
//   - It is no cheaper than that of the next level above it in the tree: the search starts from that plan and
//     refuses what costs less.
//   - It is no dearer than that of the next level below it in the tree, which fits as well.
// So costs fall from level to level, over any part of the tree. A budget's plan is that of the last level
// within it where the way down the tree ends, or that of a level above it on that way whose arena happens to
// fit. The way is as long as the tree is deep, and the work of a level is limited: so is that of a budget.
class StepPlanner {
 public:
  // `fused` is in phase fused, without clones; `step` is its graph, and `bounds` are that graph's.
  StepPlanner(const ir::Module& fused, const StepGraph& step, planner::Bounds& bounds,
              const Options& options);
  // Leaves room for weights that are fetched ahead from the host, if there is such a plan.
  StepPlan plan(int64_t budget);
  // Levels that were searched so far: the measure of work.
  int64_t searched() const { return searched_; }

 private:
  StepPlan plan_within(int64_t budget);
  const planner::Recompute& level(int64_t number);
  planner::Recompute search(int64_t most, const planner::Recompute* above, int effort);
  int64_t bytes_of(int64_t number) const;
  bool close(int64_t low, int64_t high);

  const ir::Module& fused_;
  const StepGraph& step_;
  planner::Bounds& bounds_;
  const Options& options_;
  int64_t others_ = 0;                            // bytes that the other regions need beside the buffers
  int64_t unit_ = 0, fine_ = 1;                   // bytes between two coarse levels, and levels
  int64_t top_ = 1;                               // the level of the peak
  std::map<int64_t, planner::Recompute> levels_;  // by number
  int64_t searched_ = 0;
};

// The schedule of the policies all, sqrt and marked: values used in one segment alone are dropped between the
// forward and the backward pass.
std::vector<planner::Step> segment_schedule(const ir::Module& module, const StepGraph& step, int64_t& peak,
                                            double& seconds);

}  // namespace gacc::passes
