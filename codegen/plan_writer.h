// The plan of a planned module: everything that gacc-exec and a device must know (runtime/plan.h), and the
// two forms in which `gaccc --plan` shows it.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ir/module.h"
#include "runtime/plan.h"

namespace gacc {

// What the module does not say about itself.
struct PlanFacts {
  std::string target = "sm_80";
  std::vector<std::string> passes{};  // in the order they ran
  PlanBytes bytes{};                  // by category, from plan-memory
};

// What recompute costs, by the cost model: fractions of the step's time without it.
struct PlanRecompute {
  std::string policy = "none";
  int64_t recomputed_ops = 0;
  int64_t extra_flops = 0;  // a launch
  double overhead = 0;
  double overhead_lower_bound = 0;  // proven for the same memory, kernels and order
};

// All of the plan but the programs, which need device code (codegen/plan_launches.h). The module is planned.
Plan write_plan(const ir::Module& module, const PlanFacts& facts);

// `--plan --json`: also `loss_chunks`, the parts that chunk-loss made, and `groups`, the optimizer's in the
// order of the model file, the rest last. The plan is the module's.
nlohmann::ordered_json plan_json(const Plan& plan, const ir::Module& module,
                                 const PlanRecompute& recompute = {});
// `--plan`: the same for people. Groups are listed where there is more than one.
std::string plan_text(const Plan& plan, const ir::Module& module, const PlanRecompute& recompute = {});
// "567,434".
std::string count_text(int64_t count);
// What a run predicts, where that is less than a micro-batch; else empty.
std::string predictions_text(const Plan& plan);

}  // namespace gacc
