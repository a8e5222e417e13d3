// The sections of the page that one picture or table makes: HTML, "" where there is nothing to show.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "passes/recompute.h"
#include "tools/report/memory_map.h"

namespace gacc::report {

// The arena map: offset from bottom to top, time from left to right, one rectangle for every buffer and
// value.
std::string arena_html(const MemoryMap& map);

// The graph of the step: its layers from top to bottom, forward at the left, backward at the right, and
// between them what is kept or made again for the backward pass.
std::string step_graph_html(const MemoryMap& map);

// What the plan computes twice to save memory, what that costs, and what other budgets would cost. `curve`
// may be empty: then there is no picture. `arena` is the plan's.
std::string recompute_html(const passes::RecomputeReport& report, const std::vector<passes::TradeOff>& curve,
                           int64_t arena);

}  // namespace gacc::report
