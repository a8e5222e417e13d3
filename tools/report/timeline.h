// Memory over the kernels of a launch: the picture of the report, and the line of block characters that
// `gaccc --plan` prints.
#pragma once
#include <string>

#include "ir/module.h"
#include "tools/report/memory_map.h"

namespace gacc::report {

// Two pictures: the whole arena, and the part that changes.
std::string timeline_html(const MemoryMap& map);
// What is alive at the fullest kernel, as a table.
std::string peak_html(const MemoryMap& map);
// The same for `--plan`: a sparkline for each region and the peak instant with what is alive.
std::string timeline_text(const MemoryMap& map);

// "while kernel 12 of 21 of the step runs (matmul → fc2.mm)".
std::string peak_sentence(const MemoryMap& map);
// Of the width of a picture, by region: kernels count alike, but the step has most of it.
double region_share(const MemoryMap& map, size_t region);
// "step", "evaluation".
std::string_view region_name(ir::RegionKind kind);

}  // namespace gacc::report
