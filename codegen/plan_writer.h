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

// What the optimizer does alike: the trained parameters of one group, or of none, with the same decay.
struct PlanGroup {
  std::vector<std::string> match{};  // the patterns; none: what no group matches
  int32_t group = -1;
  ir::ParamRule rule{};
  int64_t tensors = 0, parameters = 0;
};
// In the order of the model file's groups, the rest last. A group that trains nothing is left out.
std::vector<PlanGroup> plan_groups(const ir::Module& module);

// All of the plan but the programs, which need device code (codegen/plan_launches.h). The module is planned.
Plan write_plan(const ir::Module& module, const PlanFacts& facts);

// `--plan --json`: also `loss_chunks`, the parts that chunk-loss made, and `groups`, the optimizer's.
nlohmann::ordered_json plan_json(const Plan& plan, const PlanRecompute& recompute = {},
                                 int64_t loss_chunks = 1, const std::vector<PlanGroup>& groups = {});
// `--plan`: the same for people. Groups are listed where there is more than one.
std::string plan_text(const Plan& plan, const PlanRecompute& recompute = {}, int64_t loss_chunks = 1,
                      const std::vector<PlanGroup>& groups = {});
// "567,434".
std::string count_text(int64_t count);

}  // namespace gacc
