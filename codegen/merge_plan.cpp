// See merge_plan.h.
#include "codegen/merge_plan.h"

#include <algorithm>

#include "codegen/launches.h"
#include "ir/cost.h"

namespace gacc::codegen {

namespace {

struct Range {
  int64_t begin, end;
};
struct Touched {
  std::vector<Range> reads, writes;
};

Touched touched(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel) {
  const auto ranges = [&](const std::vector<ir::Operand>& operands) {
    std::vector<Range> list;
    for (const ir::Operand& operand : operands) {
      const std::optional<int64_t> offset = arena_offset(module, region, operand);
      if (!offset) continue;
      const int64_t bytes = ir::type_bytes(ir::operand_type(module, region, operand), module.micro_batch());
      list.push_back({*offset, *offset + bytes});
    }
    return list;
  };
  return {ranges(kernel.reads), ranges(kernel.writes)};
}

bool overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(),
                       [&](const Range& y) { return x.begin < y.end && y.begin < x.end; });
  });
}

bool conflict(const Touched& a, const Touched& b) {
  return overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
}

}  // namespace

std::vector<int> launch_levels(const ir::Module& module, const ir::Region& region,
                               const std::vector<Call>& calls) {
  std::vector<int> levels;
  std::vector<Touched> earlier;
  for (const Call& call : calls) {
    if (call.kernel.form == ir::KernelForm::alias) continue;
    Touched mine = touched(module, region, call.kernel);
    int level = 0;
    for (size_t i = 0; i < earlier.size(); ++i) {
      if (levels[i] >= level && conflict(earlier[i], mine)) level = levels[i] + 1;
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
