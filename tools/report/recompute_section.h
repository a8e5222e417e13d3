// What the plan computes twice to save memory, what that costs, and what other budgets would cost.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "passes/recompute.h"

namespace gacc::report {

// `curve` may be empty: then there is no picture. `arena` is the plan's.
std::string recompute_html(const passes::RecomputeReport& report, const std::vector<passes::TradeOff>& curve,
                           int64_t arena);

}  // namespace gacc::report
