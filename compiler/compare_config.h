// Says whether the configuration beside weights, or that a GGUF has, describes the model that they are loaded into.
#pragma once
#include <string>

#include "runtime/plan.h"

namespace gacc {

// Reads a folder's config.json, where it has one, or a GGUF's metadata, as the compiler reads them, and compares what
// that means with what the plan presumes. An error names every key whose value is another one, or whose meaning is not
// known. Of other files nothing is read.
Status compare_config(const std::string& weights, const Plan& plan);

}  // namespace gacc
