// The pass, and the search for the fastest plan of an arena's size.
//
//   1. The step becomes the planner's graph (step_graph.h): kernels at the full micro-batch, costs from the
//      model.
//   2. Budgets are met on a fixed ladder of levels: the plan of a level never depends on the budget asked
//      for, and the cheapest of all levels that fit wins. So a larger budget, which has all levels of the
//      smaller one, never costs more. Levels whose proven bound is above what was found are not solved.
//   3. The schedule is written back as clones (rematerialize.h), clones join their readers where that takes
//      no more memory, and plan-memory says what the arena is: that is the judge.
#include "passes/recompute.h"

#include <algorithm>
#include <limits>

#include "ir/size_text.h"
#include "passes/plan_memory.h"
#include "passes/planner/recompute.h"
#include "passes/rematerialize.h"

namespace gacc::passes {

namespace {

using namespace ir;

constexpr int kLevels = 256;     // of the unconstrained peak
constexpr int kFineLevels = 32;  // of one level, where the coarse ones end

// The module with the schedule written in, as small as joining clones or leaving them makes it.
StepPlan write_back(const Module& fused, const StepGraph& step, const std::vector<planner::Step>& schedule,
                    const Options& options) {
  StepPlan out;
  out.feasible = true;
  out.module = fused;
  rematerialize(out.module, step, schedule);
  Module joined = out.module;
  fuse_clones(joined, options);
  if (transient_bytes(joined, joined.step) <= transient_bytes(out.module, out.module.step))
    out.module = std::move(joined);
  share_reads(out.module, options);
  out.arena = arena_of(out.module);
  return out;
}

class Ladder {
 public:
  Ladder(const Module& fused, const StepGraph& step, int64_t budget, const Options& options)
      : fused_(fused), step_(step), budget_(budget), options_(options) {}

  StepPlan run() {
    base_.module = fused_;
    base_.arena = arena_of(fused_);
    base_.seconds = base_.lower_bound = step_.seconds;
    base_.feasible = true;
    if (base_.arena <= budget_) return std::move(base_);
    StepPlan none;
    none.proven = least_arena(step_) > budget_;
    if (none.proven) return none;
    const int64_t transient = budget_ - step_.fixed_bytes;  // what the step may use beside the buffers
    const int64_t peak = base_.arena - step_.fixed_bytes;
    const int64_t unit = std::max<int64_t>(kAlignment, peak / kLevels);
    // Joined clones may save more than a level, so one above the budget is tried as well. The search can miss
    // a plan where a tighter level has one: only a proof, of size or of cost, ends the walk.
    int64_t lowest = 0;
    for (int64_t level = transient / unit + 1; level > 0 && may_be_better(level * unit); --level) {
      const Level found = try_level(level * unit);
      if (found == Level::planned) lowest = level;
      if (found == Level::impossible) break;
    }
    const int64_t fine = std::max<int64_t>(kAlignment, unit / kFineLevels);
    if (lowest > 0 && none_at((lowest - 1) * unit, fine)) {
      for (int64_t bytes = lowest * unit - fine; bytes > (lowest - 1) * unit && may_be_better(bytes);
           bytes -= fine) {
        if (try_level(bytes) != Level::planned) break;
      }
    }
    if (!best_.feasible) return none;
    best_.lower_bound = std::min(best_.seconds, planner::lower_bound(step_.graph, transient));
    return std::move(best_);
  }

 private:
  enum class Level : uint8_t { planned, missed, impossible };

  bool may_be_better(int64_t bytes) const {
    return !best_.feasible || planner::lower_bound(step_.graph, bytes) < best_.seconds;
  }

  planner::Recompute solve(int64_t bytes) const {
    return planner::plan_recompute(step_.graph, bytes, options_.plan_effort);
  }

  // Whether the coarse level of so many bytes has no plan, where the one above has: then the finer levels
  // between them are levels of every budget.
  bool none_at(int64_t bytes, int64_t fine) const {
    return may_be_better(bytes + fine) && (bytes == 0 || !solve(bytes).feasible);
  }

  Level try_level(int64_t bytes) {
    const planner::Recompute plan = solve(bytes);
    if (!plan.feasible) return plan.proven ? Level::impossible : Level::missed;
    if (best_.feasible && plan.cost >= best_.seconds) return Level::planned;
    StepPlan written = write_back(fused_, step_, plan.schedule, options_);
    written.seconds = plan.cost;
    if (written.arena <= budget_) best_ = std::move(written);
    return Level::planned;
  }

  const Module& fused_;
  const StepGraph& step_;
  int64_t budget_;
  const Options& options_;
  StepPlan base_, best_;
};

void note(Module& module, double base, double seconds, double bound) {
  module.settings["recompute.overhead"] = base > 0 ? std::max(0.0, seconds / base - 1) : 0.0;
  module.settings["recompute.overhead_lower_bound"] = base > 0 ? std::max(0.0, bound / base - 1) : 0.0;
}

}  // namespace

int64_t arena_of(const Module& fused) {
  Module copy = fused;
  Diag none("", "");
  if (!plan_memory(copy, {}, none)) return std::numeric_limits<int64_t>::max();
  return copy.arena_bytes.value_or(0);
}

int64_t least_arena(const StepGraph& step) {
  int64_t least = step.other_bytes;
  for (const int64_t bytes : step.graph.least_bytes()) least = std::max(least, bytes);
  return step.fixed_bytes + least;
}

StepPlan plan_step(const Module& fused, const StepGraph& step, int64_t budget, const Options& options) {
  return Ladder(fused, step, budget, options).run();
}

bool recompute(Module& module, const Options& options, Diag& diag) {
  const std::string policy = module.setting("recompute.policy", "none");
  if (policy == "none" || module.step.ops.empty()) return true;
  const StepGraph step = step_graph(module, options.costs);
  if (policy == "budget") {
    const int64_t budget = module.setting("recompute.budget", std::numeric_limits<int64_t>::max());
    StepPlan plan = plan_step(module, step, budget, options);
    if (!plan.feasible) {
      const int64_t least = least_arena(step);
      if (plan.proven)
        diag.error(
            Kind::does_not_fit, {},
            "the step does not fit into {} ({} bytes): it needs at least {} ({} bytes) with micro_batch "
            "{} (proven); without recompute it takes {}",
            size_text(budget), budget, size_text(least), least, module.micro_batch(),
            size_text(arena_of(module)));
      else
        diag.error(Kind::does_not_fit, {},
                   "no plan of {} ({} bytes) was found with micro_batch {}; none of less than {} ({} bytes) "
                   "exists (proven)",
                   size_text(budget), budget, module.micro_batch(), size_text(least), least);
      return false;
    }
    module = std::move(plan.module);
    note(module, step.seconds, plan.seconds, plan.lower_bound);
    return true;
  }
  int64_t peak = 0;
  double seconds = 0;
  const std::vector<planner::Step> schedule = segment_schedule(module, step, peak, seconds);
  module = write_back(module, step, schedule, options).module;
  note(module, step.seconds, seconds, std::min(seconds, planner::lower_bound(step.graph, peak)));
  return true;
}

std::vector<TradeOff> trade_off(const Module& module, const Options& options, int points) {
  const Module fused = module.phase == Phase::fused ? module : without_clones(module);
  const StepGraph step = step_graph(fused, options.costs);
  std::vector<TradeOff> curve;
  const int64_t most = arena_of(fused), least = least_arena(step);
  for (int i = points; i-- > 0;) {
    const int64_t budget = least + (points > 1 ? (most - least) / (points - 1) * i : 0);
    const StepPlan plan = plan_step(fused, step, i + 1 == points ? most : budget, options);
    if (!plan.feasible) break;
    curve.push_back({plan.arena, plan.seconds / step.seconds - 1, plan.lower_bound / step.seconds - 1});
  }
  std::reverse(curve.begin(), curve.end());
  return curve;
}

RecomputeReport recompute_report(const Module& planned, const CostModel& costs) {
  RecomputeReport report;
  report.policy = planned.setting("recompute.policy", "none");
  const Region& region = planned.step;
  const Module base = without_clones(planned);
  for (const double seconds : kernel_costs(costs, base, base.step, kernels(base, base.step)))
    report.base_seconds += seconds;
  report.overhead = planned.setting("recompute.overhead", 0.0);
  report.overhead_lower_bound = planned.setting("recompute.overhead_lower_bound", 0.0);
  for (const Kernel& kernel : kernels(planned, region)) {
    if (kernel.form == KernelForm::alias) continue;
    double seconds = kernel_seconds(costs, planned, region, kernel);
    for (const KernelMember& member : kernel.members) {
      const Op& op = region.ops[member.op];
      if (!op.remat) seconds = 0;  // joined: what the clone adds is not the kernel's time
    }
    for (const KernelMember& member : kernel.members) {
      const Op& op = region.ops[member.op];
      if (!op.remat) continue;
      const std::string& name = region[*op.remat].name;
      auto at = std::find_if(report.values.begin(), report.values.end(),
                             [&](const Remade& r) { return r.value == name; });
      if (at == report.values.end())
        at = report.values.insert(report.values.end(), {.value = name, .segment = op.segment});
      const int64_t flops = kernel_flops(planned, region, Kernel{.members = {member}});
      ++at->times;
      at->flops += flops;
      at->seconds += seconds;
      seconds = 0;
      if (region[op.results.front()].offset)
        at->bytes = type_bytes(region[*op.remat].type, planned.micro_batch());
      ++report.recomputed_ops;
      report.extra_flops += flops;
    }
  }
  return report;
}

}  // namespace gacc::passes
