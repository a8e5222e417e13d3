// The graph of the step: its layers from top to bottom, forward at the left, backward at the right, and
// between them what is kept or made again for the backward pass.
#pragma once
#include <string>

#include "ir/module.h"
#include "tools/report/memory_map.h"

namespace gacc::report {

std::string step_graph_html(const MemoryMap& map);

}  // namespace gacc::report
