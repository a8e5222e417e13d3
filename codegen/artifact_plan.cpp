// See artifact_plan.h.
#include "codegen/artifact_plan.h"

#include <fmt/format.h>

namespace gacc {

namespace {

// Constants lifted out of a body travel among the extents as their 32 bits; the plan carries no negative
// extents.
PlanArgument argument(const codegen::Extent& extent) {
  PlanArgument result{PlanArgument::Kind::extent};
  result.extent = extent.factor < 0 ? extent.factor & 0xffffffff : extent.factor;
  result.times_batch = extent.times_batch;
  return result;
}

std::optional<PlanLaunch> kernel_launch(const ir::Module& module, const ir::Region& region,
                                        const codegen::Call& call, const std::string& entry,
                                        std::string& problem) {
  PlanLaunch launch;
  launch.kernel = entry;
  for (const ir::Operand& operand : call.operands) {
    const std::optional<int64_t> offset = arena_offset(module, region, operand);
    if (!offset) {
      problem = fmt::format("kernel {}: {} has no place in the arena", entry,
                            operand_text(module, region, operand));
      return std::nullopt;
    }
    launch.arguments.push_back({PlanArgument::Kind::address, *offset});
  }
  for (const codegen::Extent& extent : call.extents) launch.arguments.push_back(argument(extent));
  launch.block = call.block;
  launch.grid = argument(call.items);
  launch.per_block = call.per_block;
  return launch;
}

std::optional<PlanLaunch> product_launch(const ir::Module& module, const ir::Region& region,
                                         const ir::Kernel& kernel, int capability, std::string& problem) {
  std::optional<PlanLaunch> launch = gemm_launch(module, region, kernel, problem);
  const std::optional<codegen::GemmKernel> builtin =
      codegen::choose_gemm(module, region, kernel, capability, problem);
  if (!launch || !builtin) return std::nullopt;
  launch->builtin = {builtin->name(), builtin->tile->threads(), builtin->tile->m, builtin->tile->n};
  return launch;
}

}  // namespace

bool add_programs(const ir::Module& module, const codegen::DeviceCode& code, Plan& plan,
                  std::string& problem) {
  if (!code.programs.empty()) {
    plan.programs = code.programs;
    return true;
  }
  plan.programs.clear();
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    PlanProgram program{std::string(ir::region_text(kind)), {}};
    for (const codegen::Call& call : code.program.calls(kind)) {
      if (call.kernel.form == ir::KernelForm::alias) continue;
      std::optional<PlanLaunch> launch =
          call.kernel.form == ir::KernelForm::gemm
              ? product_launch(module, region, call.kernel, codegen::capability(plan.target), problem)
              : kernel_launch(module, region, call, code.entries[static_cast<size_t>(call.function)],
                              problem);
      if (!launch) return false;
      program.launches.push_back(std::move(*launch));
    }
    plan.programs.push_back(std::move(program));
  }
  return true;
}

}  // namespace gacc
