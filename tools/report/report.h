// Describes a planned module: the page of --report FILE.html, the picture of --emit svg, and what --plan prints
// besides the plan itself.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compiler/choose_batch.h"
#include "ir/module.h"
#include "kernels/launch_work.h"
#include "passes/recompute.h"

namespace gacc::report {

// Returns a sparkline for each region of the planned module, and the fullest kernel with what is alive then.
// `width`: columns of its lines.
std::string timeline_text(const ir::Module& module, size_t width);

// Returns the memory in use over the kernels of the planned module, as a picture that needs nothing else.
std::string memory_svg(const ir::Module& module);

// Adds what the page draws and the plan lacks: `memory`, the place and life of every buffer and value;
// `recompute.values`, what is computed twice; `trade_off`, what other budgets would cost (may be empty).
void add_memory(nlohmann::ordered_json& plan, const ir::Module& module,
                const passes::RecomputeReport& recompute, const std::vector<passes::TradeOff>& trade_off);

// Returns the page about a plan that `add_memory` and `add_kernels` have completed. It needs nothing else.
std::string page(const nlohmann::ordered_json& plan);

// Estimates for what a micro-batch and an update run on a GPU, launch by launch (docs/gpu.md).
struct KernelCosts {
  const kernels::Machine* machine = nullptr;
  kernels::RegionCost step, update, close;
};
// The module is scheduled. `link`: of the host, bytes a second each way.
KernelCosts kernel_costs(const ir::Module& module, std::optional<double> link = {});
// Returns the table of --plan --kernels: equal launches in one row, the longest first.
std::string kernels_text(const KernelCosts& costs);
// Adds `kernels`, a launch each in the order of execution, `step_seconds`, `step_floor_seconds`, and `estimate`, which
// says for what machine that is.
void add_kernels(nlohmann::ordered_json& plan, const KernelCosts& costs);

// The cost of state on the host (memory.host): what an update copies, and how long that takes at so many bytes a second
// each way, both ways at once.
struct HostCosts {
  int64_t bytes = 0;                 // of the block
  int64_t tensors = 0, weights = 0;  // of state; fetched by the step
  int64_t state_bytes = 0;
  int64_t fetched = 0, fetches = 0;  // bytes and copies of weights for a micro-batch
  double fetch_seconds = 0, fetch_uncovered = 0;
  int64_t kept = 0;                  // bytes of state that cannot lie there
  int64_t moved = 0, copies = 0;     // each way
  double link = kernels::kHostLink;  // bytes a second
  double seconds = 0, step = 0;      // of the copies, and of a launch of the step: estimates
  double uncovered = 0;              // of them what no kernel of the update hides
  std::vector<HostPoint> curve{};    // what more and less there would leave in the arena
  // The launches of an update from which the copies take less than a twentieth of their time.
  int64_t accumulate() const;
};
// The module is scheduled.
HostCosts host_costs(const ir::Module& module, std::optional<double> link, const KernelCosts& kernels);
std::string host_text(const HostCosts& costs);  // "" where nothing lies there
void add_host(nlohmann::ordered_json& plan, const HostCosts& costs);

// The cost of adding up the sums of several ranks (docs/ranks.md), for --plan --ranks R --link SIZE/s: of a full
// window, for the rank that has most to do.
struct RankCosts {
  int64_t ranks = 1, lanes = 1;
  bool shared = false;           // the optimizer's state (memory.shard)
  int64_t launches = 1;          // of the window, a rank's
  int64_t bytes = 0;             // that it sends to the others
  double seconds = 0, rest = 0;  // on the link, and of its launches and the update: estimates
  std::optional<double> link{};  // bytes a second; without one `seconds` is not known
  double share() const { return seconds > 0 ? seconds / (seconds + rest) : 0; }
};
// The module is scheduled, with train.ranks ranks.
RankCosts rank_costs(const ir::Module& module, std::optional<double> link, const KernelCosts& kernels);
std::string ranks_text(const RankCosts& costs, const KernelCosts& kernels);
// Adds `ranks`; what is unknown without a link is null.
void add_ranks(nlohmann::ordered_json& plan, const RankCosts& costs);

}  // namespace gacc::report
