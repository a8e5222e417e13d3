// Pass `persistent`: a small step, and the update, as one cooperative kernel that walks its levels with a
// barrier of the whole grid between them. It stands beside the launches: a GPU that cannot run it has those.
// Pass `launch-mode` has decided which regions run so.
#include "passes/launch_mode.h"
#include "passes/pass.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

std::string cannot_share(const ir::Calls& calls, int64_t micro_batch) {
  const int64_t block = ir::merged_block({calls});
  for (const ir::CallSite* call : calls) {
    const ir::KernelCall* kernel = ir::as_kernel(*call);
    const std::string name = kernel != nullptr ? kernel->function : fmt::format("product {}", call->kernel);
    if (ir::places(*call, block) < 1) return name + " needs too much shared memory";
    if (!ir::countable(*call, micro_batch)) return name + " has too many blocks of work";
  }
  return "";
}

bool persistent(ir::Module& module, const Options&, Diag& diag) {
  const auto make = [&](ir::Region& region, size_t least_levels, bool required) {
    if (!region.schedule) return;
    const ir::Levels levels = ir::by_level(*region.schedule);
    if (levels.size() < least_levels) return;
    const std::string why_not =
        cannot_share(ir::calls(std::as_const(*region.schedule)), module.micro_batch());
    if (!why_not.empty()) {  // of a module that `launch-mode` did not make
      diag.error(Kind::invalid_ir, {}, "{} cannot be one kernel: {}", ir::region_text(region.kind), why_not);
      return;
    }
    ir::Persistent persistent;
    persistent.function = fmt::format("{}_persistent", ir::region_text(region.kind));
    persistent.block = ir::merged_block(levels);
    persistent.blocks = ir::merged_blocks(levels, persistent.block, module.micro_batch());
    persistent.required = required;
    region.schedule->persistent = std::move(persistent);
  };
  if (is_persistent_update(module)) make(module.update, 2, false);  // one level is one launch anyway
  if (is_persistent_step(module)) make(module.step, 1, *module.settings.launch.mode == kPersistentMode);
  return !diag.failed();
}

}  // namespace gacc::passes
