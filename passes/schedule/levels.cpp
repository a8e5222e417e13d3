// Pass `levels`: every launch gets the first level in which it can run, when each level begins after the one
// before it has ended. What a product does has none: the product waits for both.

#include "passes/pass.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

ir::Dependence launch_dependence(const ir::Module& module, const ir::Region& region,
                                 const ir::RegionFacts& facts) {
  const ir::KernelNumbers& numbers = facts.numbers;
  ir::Dependence dependence(module, region, facts.kernels);
  for (const ir::CallSite* call : ir::calls(*region.schedule)) {
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
    const ir::Facts facts = ir::facts(module, region);
    const std::vector<int32_t> levels = launch_dependence(module, region, *facts).earliest_levels();
    for (ir::CallSite* call : ir::calls(*region.schedule))
      if (call->level) call->level = levels[facts->numbers[call->kernel]];
  }
  return true;
}

}  // namespace gacc::passes
