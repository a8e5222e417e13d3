#include "kernels/select.h"

#include <fmt/format.h>

#include "ir/product.h"

namespace gacc::kernels {

namespace {

ir::ProductCall select_product(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel,
                               const GpuTarget& gpu) {
  const ir::Op& op = region.ops[kernel.members.front().op];
  const GemmTile& tile = *choose_gemm(module, region, kernel, gpu).tile;
  if (op.when) throw Unfit(fmt::format("`{}` under a condition is not supported", op.info->name));
  ir::ProductCall call = ir::product_of(module, region, op);
  call.tile_m = tile.m;
  call.tile_n = tile.n;
  call.slices = tile.slices;
  call.block = tile.threads();
  call.shared = tile_shared_bytes(tile, gpu);
  return call;
}

}  // namespace

GemmKernel built_in(const ir::Module& module, const ir::Region& region, const ir::CallSite& product,
                    const ModuleKernels& program, const GpuTarget& gpu) {
  GemmKernel kernel = choose_gemm(module, region, program.call(region.kind, product.kernel).kernel, gpu);
  if (const std::optional<ir::Then>& then = ir::as_product(product)->then) {
    const int32_t function = program.call(region.kind, then->kernel).function;
    kernel.epilogue = {function, program.functions[function].name, then->slot, then->keeps};
  }
  return kernel;
}

ir::CallSite select_kernel(const ir::Module& module, const ir::Region& region, const BodyCall& from,
                           const Body* body, const GpuTarget& gpu) {
  ir::CallSite call;
  call.kernel = from.kernel.number;
  if (from.kernel.form == ir::KernelForm::gemm)
    call.what = select_product(module, region, from.kernel, gpu);
  else if (from.kernel.form == ir::KernelForm::copy)
    call.what = ir::CopyCall{from.operands[0], from.operands[1],
                             ir::type_bytes(ir::operand_type(module, region, from.operands[0]), 1)};
  else
    call.what = ir::KernelCall{body->name,     from.operands, from.extents, from.items,
                               from.per_block, from.block,    body->shared};
  return call;
}

std::optional<ir::Schedule> select(const ir::Module& module, const ir::Region& region,
                                   const ModuleKernels& program, const GpuTarget& gpu,
                                   std::string& problem) try {
  ir::Schedule schedule;
  for (const BodyCall& from : program.calls(region.kind)) {
    if (from.kernel.form == ir::KernelForm::alias) continue;
    const Body* body = from.function < 0 ? nullptr : &program.functions[from.function];
    ir::CallSite call = select_kernel(module, region, from, body, gpu);
    call.level = static_cast<int32_t>(schedule.launches.size());
    schedule.launches.emplace_back(std::move(call));
  }
  return schedule;
} catch (const Unfit& unfit) {
  problem = unfit.what();
  return std::nullopt;
}

}  // namespace gacc::kernels
