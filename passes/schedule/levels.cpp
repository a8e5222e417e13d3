// Pass `levels`: every launch gets the first level in which it can run, when each level begins after the one
// before it has ended. What a product does has none: the product waits for both.
#include <utility>

#include "passes/pass.h"
#include "passes/schedule/schedule.h"

namespace gacc::passes {

ir::Dependence launch_dependence(const ir::Module& module, const ir::Region& region,
                                 const std::vector<ir::Kernel>& kernels) {
  const ir::KernelNumbers numbers(kernels);
  ir::Dependence dependence(module, region, kernels);
  for (const ir::Call* call : ir::calls(*region.schedule)) {
    const ir::ProductCall* product = ir::as_product(*call);
    if (product != nullptr && product->then)
      dependence.join(numbers[call->kernel], numbers[product->then->kernel]);
  }
  return dependence;
}

bool levels(ir::Module& module, const Options&, Diag&) {
  for (const ir::RegionKind kind : ir::all_regions) {
    ir::Region& region = module.region(kind);
    if (!region.schedule) continue;
    const std::vector<ir::Kernel> kernels = ir::kernels(module, region);
    const ir::KernelNumbers numbers(kernels);
    const std::vector<int32_t> levels = launch_dependence(module, region, kernels).earliest_levels();
    for (ir::Call* call : ir::calls(*region.schedule))
      if (call->level) call->level = levels[numbers[call->kernel]];
  }
  return true;
}

}  // namespace gacc::passes
