// The two forms in which `gaccc --plan` shows a plan.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "compiler/plan/plan_of.h"
#include "passes/recompute.h"

namespace gacc {

// Returns `--plan --json`: also `loss_chunks`, the parts that chunk-loss made, and `groups`, the optimizer's in the
// order of the model file, the rest last. The plan is the module's.
nlohmann::ordered_json plan_json(const Plan& plan, const ir::Module& module,
                                 const passes::RecomputeReport& recompute = {});
// "26.2 MFLOP", "1.69 TFLOP".
std::string work_text(int64_t flops);
// Returns `--plan`, for people. Groups are listed where there is more than one. `precision_because`: why it computes
// in the type of the plan, where something says so.
std::string plan_text(const Plan& plan, const ir::Module& module,
                      const passes::RecomputeReport& recompute = {},
                      const std::string& precision_because = "");
// Returns "567,434".
std::string count_text(int64_t count);

}  // namespace gacc
