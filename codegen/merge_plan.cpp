// See merge_plan.h.
#include "codegen/merge_plan.h"

#include <algorithm>

#include "codegen/launches.h"
#include "ir/cost.h"

namespace gacc::codegen {

std::vector<int> launch_levels(const ir::Module& module, const ir::Region& region,
                               const std::vector<Call>& calls, const std::vector<Epilogue>& epilogues) {
  std::vector<Touched> all;
  for (const Call& call : calls) all.push_back(touched(module, region, call.kernel));
  const auto is_launch = [&](size_t i) { return calls[i].kernel.form != ir::KernelForm::alias; };
  std::vector<int> level(calls.size(), 0);  // of each call
  for (const Epilogue& epilogue : epilogues) {
    const Touched& kernel = all[epilogue.kernel];
    Touched& product = all[epilogue.product];
    product.reads.insert(product.reads.end(), kernel.reads.begin(), kernel.reads.end());
    product.writes.insert(product.writes.end(), kernel.writes.begin(), kernel.writes.end());
    level[epilogue.kernel] = kInItsProduct;
  }
  std::vector<int> levels;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!is_launch(i)) continue;
    for (size_t e = 0; e < i && level[i] != kInItsProduct; ++e)
      if (is_launch(e) && level[e] >= level[i] && conflict(all[e], all[i])) level[i] = level[e] + 1;
    levels.push_back(level[i]);
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
