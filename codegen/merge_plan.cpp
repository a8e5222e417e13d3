// See merge_plan.h.
#include "codegen/merge_plan.h"

#include <algorithm>

#include "codegen/launches.h"
#include "ir/cost.h"

namespace gacc::codegen {

std::vector<int> launch_levels(const ir::Module& module, const ir::Region& region,
                               const std::vector<Call>& calls, const std::vector<Epilogue>& epilogues) {
  const auto append = [](std::vector<Range>& to, const std::vector<Range>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  std::vector<int> levels;
  std::vector<Touched> earlier;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kernel.form == ir::KernelForm::alias) continue;
    Touched mine = touched(module, region, calls[i].kernel);
    int level = 0;
    for (const Epilogue& epilogue : epilogues) {
      if (epilogue.kernel == i) level = kInItsProduct;
      if (epilogue.product != i) continue;
      const Touched kernel = touched(module, region, calls[epilogue.kernel].kernel);
      append(mine.reads, kernel.reads);
      append(mine.writes, kernel.writes);
    }
    for (size_t e = 0; e < earlier.size() && level != kInItsProduct; ++e) {
      if (levels[e] >= level && conflict(earlier[e], mine)) level = levels[e] + 1;
    }
    levels.push_back(level);
    earlier.push_back(std::move(mine));
  }
  return levels;
}

LaunchMode launch_mode(const ir::Module& module) {
  const std::string mode = module.setting("launch.mode", "auto");
  if (mode == "graph") return {};
  if (mode == "persistent") return {.persistent = true, .required = true, .update = true};
  const ir::Cost cost = ir::cost(module, module.step);
  int64_t bytes = 0, kernels = 0;
  for (const ir::Kernel& kernel : ir::kernels(module, module.step)) {
    if (kernel.form == ir::KernelForm::alias) continue;
    ++kernels;
    for (const auto* operands : {&kernel.reads, &kernel.writes}) {
      for (const ir::Operand& operand : *operands)
        bytes += ir::type_bytes(ir::operand_type(module, module.step, operand), module.micro_batch());
    }
  }
  const bool small =
      bytes <= kSmallStepBytes && cost.flops <= kSmallStepFlops && kernels <= kSmallStepKernels;
  const auto updates = static_cast<int64_t>(ir::kernels(module, module.update).size());
  return {.persistent = small, .update = updates <= kSmallUpdateKernels};
}

}  // namespace gacc::codegen
