// Pass `select`: from kernels to the launches of one GPU.
#include "kernels/select.h"
#include "passes/pass.h"

namespace gacc::passes {

bool select(ir::Module& module, const Options& options, Diag& diag) {
  const kernels::GpuTarget gpu(options.target);
  std::string problem;
  const std::optional<kernels::ModuleKernels> program =
      kernels::make_program(module, kernels::Purpose::device, problem, gpu);
  if (!program) {
    diag.error(Kind::invalid_ir, {}, "{}", problem);
    return false;
  }
  for (const ir::RegionKind kind : ir::all_regions) {
    ir::Region& region = module.region(kind);
    if (region.ops.empty()) continue;
    region.schedule = kernels::select(module, region, *program, gpu, problem);
    if (region.schedule) continue;
    diag.error(Kind::unsupported, {}, "{}", problem);
    return false;
  }
  module.target = options.target;
  return true;
}

}  // namespace gacc::passes
