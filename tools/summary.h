// What `gaccc --summary` prints.
#pragma once
#include <string>
#include <vector>

#include "frontend/frontend.h"

namespace gacc {

// A row for each layer, and the totals.
std::string summary_text(const std::vector<LayerSummary>& layers);

}  // namespace gacc
