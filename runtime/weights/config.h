// The config.json beside published weights: it decides what they compute as much as the weights do.
#pragma once
#include <string>

#include "runtime/gguf.h"
#include "runtime/plan.h"

namespace gacc {

// Compares a folder's config.json, where it has one, with what the model presumes. An error names every key whose
// value is another one, or whose meaning is not known here.
Status compare_config(const std::string& folder, const Plan& plan);
// The same with what a GGUF says of itself.
Status compare_metadata(const Gguf& gguf, std::string_view file, const Plan& plan);
// Returns the folder's config.json as it is for weights of the plan's model in `dtype` ("F32", "F16", "BF16"):
// with that type, the model's vocabulary, and positions for all of its window.
Result<std::string> config_for(const std::string& folder, const Plan& plan, std::string_view dtype);

}  // namespace gacc
