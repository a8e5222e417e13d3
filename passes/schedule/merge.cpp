// Pass `merge`: the kernels of one level of the update, or of closing a lane, become one launch. The lines are
// sorted by level for that.
#include <fmt/format.h>

#include <utility>

#include "passes/pass.h"
#include "passes/schedule/schedule.h"

namespace gacc::passes {

namespace {

// "mul_adam_fill_14" -> "mul_adam_fill"
std::string without_number(const std::string& function) { return function.substr(0, function.rfind('_')); }

bool all_kernels(const std::vector<const ir::Call*>& calls) {
  for (const ir::Call* call : calls)
    if (ir::as_product(*call) != nullptr) return false;
  return true;
}

void merge(const ir::Module& module, ir::Region& region) {
  if (!region.schedule) return;
  ir::Schedule& schedule = *region.schedule;
  const std::vector<std::vector<const ir::Call*>> levels = ir::by_level(schedule);
  std::vector<ir::Launch> launches;
  for (size_t level = 0; level < levels.size(); ++level) {
    const std::vector<const ir::Call*>& calls = levels[level];
    if (calls.size() < 2 || !all_kernels(calls) || !cannot_share({calls}, module.micro_batch()).empty()) {
      for (const ir::Call* call : calls) launches.emplace_back(*call);
      continue;
    }
    ir::Merged merged;
    merged.function = fmt::format("{}_{}_{}", ir::region_text(region.kind), level,
                                  without_number(ir::as_kernel(*calls.front())->function));
    merged.block = ir::merged_block({calls});
    merged.blocks = ir::merged_blocks({calls}, merged.block, module.micro_batch());
    for (const ir::Call* call : calls) merged.parts.push_back(*call);
    launches.emplace_back(std::move(merged));
  }
  // What products do comes last: it has no place in the order.
  for (const ir::Call* call : ir::calls(std::as_const(schedule)))
    if (!call->level) launches.emplace_back(*call);
  schedule.launches = std::move(launches);
}

}  // namespace

bool merge(ir::Module& module, const Options&, Diag&) {
  for (ir::Region* region : {&module.update, &module.close, &module.norms, &module.ratios, &module.clear})
    merge(module, *region);
  return true;
}

}  // namespace gacc::passes
