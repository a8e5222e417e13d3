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

// The best within the budget that is being met.
struct StepPlanner::Best {
  int64_t budget = 0, level = -1;
  StepPlan plan{};  // its module stays empty where the level's arena was known already
};

StepPlanner::StepPlanner(const Module& fused, const StepGraph& step, const Options& options)
    : fused_(fused), step_(step), options_(options), base_arena_(arena_of(fused)) {}

const StepPlanner::Level& StepPlanner::level(int64_t bytes) {
  const auto [at, fresh] = levels_.try_emplace(bytes);
  if (fresh) at->second.plan = planner::plan_recompute(step_.graph, bytes, options_.plan_effort);
  return at->second;
}

double StepPlanner::bound(int64_t bytes) {
  const auto [at, fresh] = bounds_.try_emplace(bytes, 0);
  if (fresh) at->second = planner::lower_bound(step_.graph, bytes);
  return at->second;
}

bool StepPlanner::may_be_better(const Best& best, int64_t bytes) {
  return !best.plan.feasible || bound(bytes) < best.plan.seconds;
}

// Whether the coarse level of so many bytes has no plan, where the one above has: then the finer levels
// between them are levels of every budget.
bool StepPlanner::none_at(const Best& best, int64_t bytes, int64_t fine) {
  return may_be_better(best, bytes + fine) && (bytes == 0 || !level(bytes).plan.feasible);
}

// The plan of a level that has one.
void StepPlanner::consider(Best& best, int64_t bytes) {
  Level& found = levels_.at(bytes);
  const double seconds = found.plan.cost;
  if (best.plan.feasible && seconds >= best.plan.seconds) return;
  StepPlan written;
  if (!found.arena) {
    written = write_back(fused_, step_, found.plan.schedule, options_);
    found.arena = written.arena;
  }
  if (*found.arena > best.budget) return;
  written.feasible = true;
  written.arena = *found.arena;
  written.seconds = seconds;
  best.plan = std::move(written);
  best.level = bytes;
}

StepPlan StepPlanner::plan(int64_t budget) {
  if (base_arena_ <= budget)
    return {.feasible = true,
            .module = fused_,
            .arena = base_arena_,
            .seconds = step_.seconds,
            .lower_bound = step_.seconds};
  StepPlan none;
  none.proven = least_arena(step_) > budget;
  if (none.proven) return none;
  const int64_t transient = budget - step_.fixed_bytes;  // what the step may use beside the buffers
  const int64_t peak = base_arena_ - step_.fixed_bytes;
  const int64_t unit = std::max<int64_t>(kAlignment, peak / kLevels);
  // Joined clones may save more than a level, so one above the budget is tried as well. The search can miss a
  // plan where a tighter level has one: only a proof, of size or of cost, ends the walk.
  Best best{.budget = budget};
  int64_t lowest = 0;
  for (int64_t number = transient / unit + 1; number > 0 && may_be_better(best, number * unit); --number) {
    const planner::Recompute& found = level(number * unit).plan;
    if (!found.feasible && found.proven) break;
    if (!found.feasible) continue;
    lowest = number;
    consider(best, number * unit);
  }
  const int64_t fine = std::max<int64_t>(kAlignment, unit / kFineLevels);
  if (lowest > 0 && none_at(best, (lowest - 1) * unit, fine)) {
    for (int64_t bytes = lowest * unit - fine; bytes > (lowest - 1) * unit && may_be_better(best, bytes);
         bytes -= fine) {
      if (!level(bytes).plan.feasible) break;
      consider(best, bytes);
    }
  }
  if (!best.plan.feasible) return none;
  best.plan.lower_bound = std::min(best.plan.seconds, bound(transient));
  if (best.plan.module.step.ops.empty()) {
    const planner::Recompute& found = levels_.at(best.level).plan;
    best.plan.module = write_back(fused_, step_, found.schedule, options_).module;
  }
  return std::move(best.plan);
}

bool recompute(Module& module, const Options& options, Diag& diag) {
  const std::string policy = module.setting("recompute.policy", "none");
  if (policy == "none" || module.step.ops.empty()) return true;
  const StepGraph step = step_graph(module, options.costs);
  if (policy == "budget") {
    const int64_t budget = module.setting("recompute.budget", std::numeric_limits<int64_t>::max());
    StepPlan plan = StepPlanner(module, step, options).plan(budget);
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
  StepPlanner planner(fused, step, options);
  std::vector<TradeOff> curve;
  const int64_t most = arena_of(fused), least = least_arena(step);
  for (int i = points; i-- > 0;) {
    const int64_t budget = least + (points > 1 ? (most - least) / (points - 1) * i : 0);
    const StepPlan plan = planner.plan(i + 1 == points ? most : budget);
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
