#include <fmt/ranges.h>

#include "ir/schedule/launch_order.h"
#include "kernels/select.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

namespace {

// Compares what follows from the kernel and the tile; later decisions are left out.
bool same(const ir::CallSite& call, const ir::CallSite& selected) {
  const ir::ProductCall *given = ir::as_product(call), *right = ir::as_product(selected);
  if (given == nullptr || right == nullptr) return call.what == selected.what;
  ir::ProductCall plain = *given;
  plain.then.reset();
  plain.bias.reset();
  plain.workspace.reset();
  return plain == *right;
}

// Checks the waits of launches, which follow from the streams.
std::string wrong_wait(const ir::Module& module, const ir::Region& region) {
  ir::Schedule right = *region.schedule;
  ir::add_waits(ir::launch_touched(module, region, ir::facts(module, region)->kernels), right);
  for (size_t i = 0; i < right.launches.size(); ++i) {
    const ir::Launch& given = region.schedule->launches[i];
    const std::vector<int32_t>& after = ir::branch(right.launches[i]).after;
    if (ir::branch(given).after == after) continue;
    return fmt::format("R29: {}: the launch of kernel {} waits for {}", ir::region_text(region.kind),
                       ir::calls(given).front()->kernel,
                       after.empty()
                           ? "no other stream"
                           : fmt::format("that of kernel {}", fmt::join(after, " and that of kernel ")));
  }
  return "";
}

}  // namespace

std::string check_schedule(const ir::Module& module) {
  std::string problem;
  const std::optional<kernels::ModuleKernels> program =
      kernels::make_program(module, kernels::Purpose::device, problem, kernels::GpuTarget(module.target));
  return program ? check_schedule(module, *program) : problem;
}

std::string check_schedule(const ir::Module& module, const kernels::ModuleKernels& program) {
  const kernels::GpuTarget gpu(module.target);
  std::string problem;
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    if (!region.schedule) continue;
    const std::optional<ir::Schedule> selected = kernels::select(module, region, program, gpu, problem);
    if (!selected) return problem;
    std::map<int32_t, const ir::CallSite*> by_kernel;
    for (const ir::CallSite* call : ir::calls(*selected)) by_kernel[call->kernel] = call;
    for (const ir::CallSite* call : ir::calls(*region.schedule)) {
      if (!same(*call, *by_kernel.at(call->kernel)))
        return fmt::format("R29: {}: the launch of kernel {} is not what `select` makes of it for {}",
                           ir::region_text(kind), call->kernel, module.target);
    }
    if (const std::string wrong = wrong_wait(module, region); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace gacc::passes
