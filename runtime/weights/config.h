// The config.json that is saved beside weights. (compiler/compare_config.h compares one that is loaded.)
#pragma once
#include <string>

#include "runtime/plan.h"

namespace gacc {

// Returns the folder's config.json as it is for weights of the plan's model in `dtype` ("F32", "F16", "BF16"):
// with that type, the model's vocabulary, and positions for all of its window.
Result<std::string> config_for(const std::string& folder, const Plan& plan, std::string_view dtype);

}  // namespace gacc
