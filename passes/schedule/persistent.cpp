// Pass `persistent`: a small step, and the update, as one cooperative kernel that walks its levels with a
// barrier of the whole grid between them. It stands beside the launches: a GPU that cannot run it has those.
#include <fmt/format.h>

#include "ir/cost.h"
#include "passes/pass.h"
#include "passes/schedule/schedule.h"

namespace gacc::passes {

std::string cannot_share(const std::vector<std::vector<const ir::Call*>>& levels, int64_t micro_batch) {
  const int64_t block = ir::merged_block(levels);
  for (const std::vector<const ir::Call*>& level : levels) {
    for (const ir::Call* call : level) {
      const ir::KernelCall* kernel = ir::as_kernel(*call);
      const std::string name = kernel != nullptr ? kernel->function : fmt::format("product {}", call->kernel);
      if (ir::places(*call, block) < 1) return name + " needs too much shared memory";
      if (!ir::countable(*call, micro_batch)) return name + " has too many blocks of work";
    }
  }
  return "";
}

LaunchMode launch_mode(const ir::Module& module) {
  const std::string mode = *module.settings.launch.mode;
  if (mode == "graph") return {};
  if (mode == "persistent") return {.persistent = true, .required = true, .update = true};
  const ir::Cost cost = ir::cost(module, module.step);
  int64_t bytes = 0, kernels = 0;
  for (const ir::Kernel& kernel : ir::kernels(module, module.step)) {
    if (kernel.form == ir::KernelForm::alias) continue;
    ++kernels;
    for (const auto* operands : {&kernel.reads, &kernel.writes})
      for (const ir::Operand& operand : *operands)
        bytes += ir::type_bytes(ir::operand_type(module, module.step, operand), module.micro_batch());
  }
  const bool small =
      bytes <= kSmallStepBytes && cost.flops <= kSmallStepFlops && kernels <= kSmallStepKernels;
  const auto updates = static_cast<int64_t>(ir::kernels(module, module.update).size());
  return {.persistent = small, .update = updates <= kSmallUpdateKernels};
}

namespace {

// "" or why there is none.
std::string make_persistent(const ir::Module& module, ir::Region& region, bool required) {
  const std::vector<std::vector<const ir::Call*>> levels = ir::by_level(*region.schedule);
  if (std::string why = cannot_share(levels, module.micro_batch()); !why.empty()) return why;
  if (!required && ir::merged_block(levels) > kMostSharedThreads)
    return "its blocks would have too many threads";
  ir::Persistent persistent;
  persistent.function = fmt::format("{}_persistent", ir::region_text(region.kind));
  persistent.block = ir::merged_block(levels);
  persistent.blocks = ir::merged_blocks(levels, persistent.block, module.micro_batch());
  persistent.required = required;
  region.schedule->persistent = std::move(persistent);
  return "";
}

}  // namespace

bool persistent(ir::Module& module, const Options&, Diag& diag) {
  const LaunchMode mode = launch_mode(module);
  // One level is one launch anyway.
  if (mode.update && module.update.schedule && ir::by_level(*module.update.schedule).size() > 1)
    make_persistent(module, module.update, false);
  if (!mode.persistent || !module.step.schedule || module.step.schedule->launches.empty()) return true;
  const std::string why = make_persistent(module, module.step, mode.required);
  if (!why.empty() && mode.required)
    diag.error(Kind::unsupported, {}, "`launch.mode = \"persistent\"`: {}", why);
  return why.empty() || !mode.required;
}

}  // namespace gacc::passes
