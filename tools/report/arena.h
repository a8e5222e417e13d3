// The arena map: offset from bottom to top, time from left to right, one rectangle for every buffer and
// value.
#pragma once
#include <string>

#include "tools/report/memory_map.h"

namespace gacc::report {

std::string arena_html(const MemoryMap& map);

}  // namespace gacc::report
