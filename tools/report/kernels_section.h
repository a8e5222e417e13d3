// What a micro-batch and an update run on a GPU, with what each launch is estimated to take
// (docs/gpu-cost.md): the table of `gaccc --plan --kernels`, its JSON, and the section of the report.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ir/module.h"
#include "kernels/launch_work.h"

namespace gacc::report {

struct KernelCosts {
  const kernels::Machine* machine = nullptr;
  kernels::RegionCost step, update, close;
};

// Of a scheduled module.
KernelCosts kernel_costs(const ir::Module& module);

// Equal launches in one row, the longest first.
std::string kernels_text(const KernelCosts& costs);
std::string kernels_html(const KernelCosts& costs);
// Adds `kernels`, a launch each in the order of execution, `step_seconds` and `step_floor_seconds`.
void add_kernels(nlohmann::ordered_json& plan, const KernelCosts& costs);

}  // namespace gacc::report
