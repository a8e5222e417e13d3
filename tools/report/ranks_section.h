// What the sums of several ranks cost (docs/ranks.md): the part of `gaccc --plan --ranks R --link SIZE/s`.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "ir/module.h"
#include "tools/report/kernels_section.h"

namespace gacc::report {

// Of a full window, for the rank that has most to do.
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
