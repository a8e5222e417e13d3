// The files of `gaccc --costs FILE` (docs/memory.md has the format).
#pragma once
#include <string>

#include "passes/analysis/cost_model.h"
#include "runtime/status.h"

namespace gacc {

// Puts what the file says over `costs`: a device's rates, measured times of the step's launches, or both.
Status read_costs(const std::string& path, passes::CostModel& costs);

}  // namespace gacc
