// The pass, and the search for the fastest plan of an arena's size.
//
//   1. The step becomes the planner's graph (step_graph.h): kernels at the full micro-batch, costs as kernels/
//      estimates them.
//   2. Budgets are met on a tree of levels (recompute.h).
//   3. The schedule is written back as clones (rematerialize.h), clones join their readers where that takes
//      no more memory, and plan-memory says what the arena is: that is the judge.
#include "passes/recompute.h"

#include <algorithm>
#include <limits>

#include "ir/cost.h"
#include "ir/text/size_text.h"
#include "kernels/launch_work.h"
#include "passes/analysis/rematerialize.h"
#include "passes/plan_memory.h"

namespace gacc::passes {

namespace {

using namespace ir;

// A level is an arena size to plan for. The step's peak is cut into 256 coarse levels. Two of them that differ in cost
// by more than 0.05 % of the step's time have 32 finer ones between them.
constexpr int kLevels = 256, kFineLevels = 32;
constexpr int kFewerOfLarge = 4;  // a large step has so many times fewer levels
constexpr double kCostWorthFineLevels = 0.0005;
constexpr int kLevelsAboveBudget = 2;  // coarse ones that are tried: their plans may still fit
constexpr int kPlacementTries = 3;     // searches, each for less, until a plan can be placed

// The module with the schedule written in, as small as joining clones or leaving them makes it. Joined they never
// take more bytes, but they may lie worse: then they are left where the arena has to be `most` bytes. Not feasible:
// no place is tried, there are too few bytes.
StepPlan write_back(const Module& fused, const StepGraph& step, const std::vector<planner::Step>& schedule,
                    int64_t most) {
  StepPlan out;
  const Module plain = rematerialized(fused, step, schedule);
  out.module = plain;
  join_clones(out.module);
  out.feasible = transient_bytes(out.module, out.module.step) <= most - step.fixed_bytes;
  if (!out.feasible) return out;
  out.arena = arena_of(out.module, most);
  if (out.arena <= most) return out;
  if (const int64_t arena = arena_of(plain, most); arena < out.arena) {
    out.module = plain;
    out.arena = arena;
  }
  return out;
}

// The cheapest plan that is found for `most` bytes. One that cannot be placed in them is mended, for as much less.
planner::Recompute placed_plan(const Module& fused, const StepGraph& step, planner::Bounds& bounds,
                               int64_t most, const planner::Recompute* above, int effort) {
  planner::Recompute found = planner::plan_recompute(bounds, most, effort, above);
  int64_t bytes = most;
  for (int attempt = 0; attempt < kPlacementTries && found.feasible; ++attempt) {
    const Module clones = rematerialized(fused, step, found.schedule);
    const int64_t excess = placed_bytes(clones, clones.step, most) - most;
    if (excess <= 0) return found;
    bytes -= excess;
    found = planner::plan_recompute(bounds, bytes, 0, &found);
  }
  return {};
}

// Returns the bytes that the other regions of training take beside the buffers, as low as `enough` where that is found.
int64_t bytes_of_others(const Module& fused, int64_t enough) {
  int64_t most = 0;
  for (const RegionKind kind : training_regions)
    if (kind != RegionKind::step) most = std::max(most, placed_bytes(fused, fused.region(kind), enough));
  return most;
}

void note(Module& module, double base, double seconds, double bound) {
  module.results.overhead = base > 0 ? std::max(0.0, seconds / base - 1) : 0.0;
  module.results.overhead_lower_bound = base > 0 ? std::max(0.0, bound / base - 1) : 0.0;
}

}  // namespace

int64_t least_arena(const StepGraph& step) {
  int64_t least = step.other_bytes;
  for (const int64_t bytes : step.graph.least_bytes()) least = std::max(least, bytes);
  return step.fixed_bytes + least;
}

StepPlanner::StepPlanner(const Module& fused, const StepGraph& step, planner::Bounds& bounds,
                         const Options& options)
    : fused_(fused), step_(step), bounds_(bounds), options_(options) {
  planner::Recompute base;
  base.feasible = true;
  base.cost = step_.seconds;
  others_ = bytes_of_others(fused, step_.other_bytes);
  const int64_t peak = std::max(others_, transient_bytes(fused, fused.step));
  // A search of a large step takes long, and each level on the way down the tree is one.
  const bool large = step_.graph.operations.size() > kLargeStep;
  const int levels = large ? kLevels / kFewerOfLarge : kLevels,
            fine = large ? kFineLevels / kFewerOfLarge : kFineLevels;
  unit_ = std::max<int64_t>(kArenaAlignment, peak / levels);
  while (fine_ < fine && unit_ / (2 * fine_) >= kArenaAlignment) fine_ *= 2;
  top_ = fine_;
  while (top_ / fine_ * unit_ < peak / unit_ * unit_) top_ *= 2;
  levels_.emplace(top_, std::move(base));
}

int64_t StepPlanner::bytes_of(int64_t number) const {
  return number / fine_ * unit_ + number % fine_ * (unit_ / fine_);
}

const planner::Recompute& StepPlanner::level(int64_t number) {
  if (const auto known = levels_.find(number); known != levels_.end()) return known->second;
  const int64_t bit = number & -number;  // its children in the tree are half of that away
  const planner::Recompute& above = level(number + bit);
  planner::Recompute found;
  if (above.feasible) found = search(bytes_of(number), &above, options_.plan_effort);
  if (const int64_t low = number - bit;
      low > 0 && above.feasible &&
      (!found.feasible || planner::lower_bound(bounds_, bytes_of(low)) < found.cost)) {
    const planner::Recompute& below = level(low);
    if (below.feasible && (!found.feasible || below.cost < found.cost)) found = below;
  }
  return levels_.emplace(number, std::move(found)).first->second;
}

planner::Recompute StepPlanner::search(int64_t most, const planner::Recompute* above, int effort) {
  if (others_ > most) return {};
  ++searched_;
  return placed_plan(fused_, step_, bounds_, most, above, effort);
}

// Tells whether the levels between two neighbours in the tree are not worth a search.
bool StepPlanner::close(int64_t low, int64_t high) {
  if (high - low == 1) return true;
  if (low == 0 || high - low > fine_) return false;
  const planner::Recompute &dear = level(low), &cheap = level(high);
  return dear.feasible && dear.cost - cheap.cost <= kCostWorthFineLevels * step_.seconds;
}

StepPlan StepPlanner::plan(int64_t budget) {
  if (step_.ahead_bytes > 0) {
    StepPlan plan = plan_within(budget - step_.ahead_bytes);
    if (plan.feasible) {
      plan.arena = arena_of(plan.module, budget);
      if (plan.arena <= budget) return plan;
    }
  }
  return plan_within(budget);
}

StepPlan StepPlanner::plan_within(int64_t budget) {
  if (step_.arena_bytes <= budget) {
    const int64_t arena = arena_of(fused_, budget);
    if (arena <= budget)
      return {.feasible = true,
              .module = fused_,
              .arena = arena,
              .seconds = step_.seconds,
              .lower_bound = step_.seconds};
  }
  StepPlan none;
  none.proven = least_arena(step_) > budget;
  if (none.proven) return none;
  const int64_t transient = budget - step_.fixed_bytes;  // what the step may use beside the buffers
  const int64_t coarse = transient / unit_;
  const int64_t asked = coarse * fine_ + std::min(fine_ - 1, transient % unit_ / (unit_ / fine_));
  // 1. The last level within the budget where the way down the tree ends.
  int64_t low = 0, high = top_;
  while (level(high).feasible && !close(low, high)) {
    const int64_t middle = low + (high - low) / 2;
    if (middle <= asked)
      low = middle;
    else
      high = middle;
  }
  const planner::Recompute* chosen = low > 0 && level(high).feasible ? &level(low) : nullptr;
  if (chosen != nullptr && !chosen->feasible) chosen = nullptr;
  // 2. The next coarse levels, where joined clones take less than their plan says.
  StepPlan written;
  for (int64_t number = coarse + kLevelsAboveBudget; number > coarse; --number) {
    if (number * fine_ >= top_) continue;
    const planner::Recompute& above = level(number * fine_);
    if (!above.feasible || (chosen != nullptr && above.cost == chosen->cost)) break;
    written = write_back(fused_, step_, above.schedule, budget);
    written.feasible = written.feasible && written.arena <= budget;
    if (written.feasible) {
      chosen = &above;
      break;
    }
  }
  if (chosen == nullptr) return none;
  if (!written.feasible) written = write_back(fused_, step_, chosen->schedule, budget);
  if (!written.feasible || written.arena > budget) return none;
  written.seconds = chosen->cost;
  written.lower_bound = std::min(written.seconds, planner::lower_bound(bounds_, transient));
  return written;
}

bool is_found_hastily(const Module& fused, const StepGraph& step, planner::Bounds& bounds, int64_t budget) {
  if (least_arena(step) > budget) return false;
  planner::Recompute plan;
  plan.feasible = true;
  plan.cost = step.seconds;
  const int64_t most = budget - step.fixed_bytes;
  if (bytes_of_others(fused, most) > most) return false;
  // Each search goes on from the plan of a larger budget: it finds more than one that starts with none.
  for (int64_t more = most / 2; plan.feasible && more > most / 64; more /= 4)
    plan = planner::plan_recompute(bounds, most + more, 0, &plan);
  return plan.feasible && placed_plan(fused, step, bounds, most, &plan, 0).feasible;
}

bool recompute(Module& module, const Options& options, Diag& diag) {
  const std::string policy = *module.settings.recompute.policy;
  if (policy == "none" || module.step.ops.empty()) return true;
  const StepGraph step = step_graph(module, options.target);
  planner::Bounds bounds(step.graph);
  if (policy == "budget") {
    const int64_t budget = *module.settings.recompute.budget;
    StepPlan plan = StepPlanner(module, step, bounds, options).plan(budget);
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
  module = write_back(module, step, schedule, std::numeric_limits<int64_t>::max()).module;
  note(module, step.seconds, seconds, std::min(seconds, planner::lower_bound(bounds, peak)));
  return true;
}

std::vector<TradeOff> trade_off(const Module& fused, const Options& options, int points, int64_t also) {
  const StepGraph step = step_graph(fused, options.target);
  planner::Bounds bounds(step.graph);
  StepPlanner planner(fused, step, bounds, options);
  const int64_t most = arena_of(fused), least = least_arena(step);
  std::vector<int64_t> budgets = {most};
  for (int i = 0; i + 1 < points; ++i) budgets.push_back(least + (most - least) / (points - 1) * i);
  if (least <= also && also < most) budgets.push_back(also);
  std::ranges::sort(budgets);
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  std::vector<TradeOff> curve;
  for (auto budget = budgets.rbegin(); budget != budgets.rend(); ++budget) {
    const StepPlan plan = planner.plan(*budget);
    if (!plan.feasible) break;
    curve.push_back(
        {*budget, plan.arena, plan.seconds / step.seconds - 1, plan.lower_bound / step.seconds - 1});
  }
  std::ranges::reverse(curve);
  return curve;
}

RecomputeReport recompute_report(const Module& planned, std::string_view target) {
  RecomputeReport report;
  report.policy = *planned.settings.recompute.policy;
  const Region& region = planned.step;
  const int64_t arena = planned.arena_bytes.value_or(0);
  const Module base = without_clones(planned);
  report.base_seconds = kernels::KernelEstimator(base, base.step, target, arena).seconds();
  report.overhead = *planned.results.overhead;
  report.overhead_lower_bound = *planned.results.overhead_lower_bound;
  const kernels::KernelEstimator estimator(planned, region, target, arena);
  for (const Kernel& kernel : facts(planned, region)->kernels) {
    const auto is_clone = [&](const KernelMember& member) { return region.ops[member.op].remat.has_value(); };
    if (std::ranges::none_of(kernel.members, is_clone)) continue;
    double seconds = estimator.seconds(kernel);
    for (const KernelMember& member : kernel.members) {
      const Op& op = region.ops[member.op];
      if (!op.remat) seconds = 0;  // joined: what the clone adds is not the kernel's time
    }
    for (const KernelMember& member : kernel.members) {
      const Op& op = region.ops[member.op];
      if (!op.remat) continue;
      const std::string& name = region[*op.remat].name;
      auto at = std::ranges::find_if(report.values, [&](const Remade& r) { return r.value == name; });
      if (at == report.values.end())
        at = report.values.insert(report.values.end(), {.value = name, .segment = op.segment});
      const int64_t flops = cost(OpView{planned, region, op}).flops;
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
