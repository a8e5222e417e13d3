// What gaccc tells of a plan: the page of --report FILE.html, and what --plan says besides the plan itself.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ir/module.h"
#include "kernels/launch_work.h"
#include "passes/recompute.h"
#include "runtime/plan.h"

namespace gacc::report {

// The plan as one page that needs nothing else, for somebody who has never read a memory plan. The module is
// planned, and `plan` is its plan (the programs are not looked at). `curve`: what other budgets would cost; may be
// empty.
std::string report_page(const ir::Module& module, const Plan& plan, const passes::RecomputeReport& recompute,
                        const std::vector<passes::TradeOff>& curve);

// A sparkline for each region of the planned module, and the peak instant with what is alive.
std::string timeline_text(const ir::Module& module);

// What a micro-batch and an update run on a GPU, with what each launch is estimated to take
// (docs/gpu-cost.md).
struct KernelCosts {
  const kernels::Machine* machine = nullptr;
  kernels::RegionCost step, update, close;
};
// Of a scheduled module.
KernelCosts kernel_costs(const ir::Module& module);
// The table of --plan --kernels: equal launches in one row, the longest first.
std::string kernels_text(const KernelCosts& costs);
// Adds `kernels`, a launch each in the order of execution, `step_seconds` and `step_floor_seconds`.
void add_kernels(nlohmann::ordered_json& plan, const KernelCosts& costs);

// What the sums of several ranks cost (docs/ranks.md), --plan --ranks R --link SIZE/s: of a full window, for the
// rank that has most to do.
struct RankCosts {
  int64_t ranks = 1, lanes = 1;
  bool shared = false;           // the optimizer's state (memory.shard)
  int64_t launches = 1;          // of the window, a rank's
  int64_t bytes = 0;             // that it sends to the others
  double seconds = 0, rest = 0;  // on the link, and of its launches and the update: estimates
  std::optional<double> link{};  // bytes a second; without one `seconds` is not known
  double share() const { return seconds > 0 ? seconds / (seconds + rest) : 0; }
};
// Of a scheduled module with train.ranks ranks.
RankCosts rank_costs(const ir::Module& module, std::optional<double> link, const KernelCosts& kernels);
std::string ranks_text(const RankCosts& costs, const KernelCosts& kernels);
// Adds `ranks`. What nobody knows without a link is null.
void add_ranks(nlohmann::ordered_json& plan, const RankCosts& costs);

}  // namespace gacc::report
