// The sections of the page that one picture or table makes: HTML, "" where there is nothing to show.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tools/report/memory_map.h"
#include "tools/report/report.h"

namespace gacc::report {

// Memory over the kernels of a launch in two pictures: the whole arena, and the part that changes.
std::string timeline_html(const MemoryMap& map);
// What is alive at the fullest kernel, as a table.
std::string peak_html(const MemoryMap& map);

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

// The launches of a micro-batch, equal ones in one row, the longest first.
std::string kernels_html(const KernelCosts& costs);

// "while kernel 12 of 21 of the step runs (matmul → fc2.mm)".
std::string peak_sentence(const MemoryMap& map);
// Of the width of a picture, by region: kernels count alike, but the step has most of it.
double region_share(const MemoryMap& map, size_t region);
// "step", "evaluation".
std::string_view region_name(ir::RegionKind kind);

}  // namespace gacc::report
