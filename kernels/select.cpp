// See select.h.
#include "kernels/select.h"

#include <fmt/format.h>

#include "ir/product.h"

namespace gacc::kernels {

namespace {

std::optional<ir::ProductCall> select_product(const ir::Module& module, const ir::Region& region,
                                              const ir::Kernel& kernel, const GpuTarget& gpu,
                                              std::string& problem) {
  const ir::Op& op = region.ops[kernel.members.front().op];
  const std::optional<GemmKernel> gemm = choose_gemm(module, region, kernel, gpu, problem);
  if (!gemm) return std::nullopt;
  if (op.when) {
    problem = fmt::format("`{}` under a condition is not supported", op.info->name);
    return std::nullopt;
  }
  ir::ProductCall call = ir::product_of(module, region, op);
  call.tile_m = gemm->tile->m;
  call.tile_n = gemm->tile->n;
  call.slices = gemm->tile->slices;
  call.block = gemm->tile->threads();
  call.shared = tile_shared_bytes(*gemm->tile, gpu);
  return call;
}

}  // namespace

GemmKernel built_in(const ir::Module& module, const ir::Region& region, const ir::Call& product,
                    const Program& program, const GpuTarget& gpu) {
  std::string problem;
  const Call& call = program.call(region.kind, product.kernel);
  GemmKernel kernel = choose_gemm(module, region, call.kernel, gpu, problem).value_or(GemmKernel{});
  if (const std::optional<ir::Then>& then = ir::as_product(product)->then) {
    const int32_t function = program.call(region.kind, then->kernel).function;
    kernel.epilogue = {function, program.functions[static_cast<size_t>(function)].name, then->slot,
                       then->keeps};
  }
  return kernel;
}

std::optional<ir::Schedule> select(const ir::Module& module, const ir::Region& region, const Program& program,
                                   const GpuTarget& gpu, std::string& problem) {
  ir::Schedule schedule;
  for (const Call& from : program.calls(region.kind)) {
    if (from.kernel.form == ir::KernelForm::alias) continue;
    ir::Call call;
    call.kernel = from.kernel.number;
    call.level = static_cast<int32_t>(schedule.launches.size());
    if (from.kernel.form == ir::KernelForm::gemm) {
      std::optional<ir::ProductCall> product = select_product(module, region, from.kernel, gpu, problem);
      if (!product) return std::nullopt;
      call.what = std::move(*product);
    } else {
      const Body& body = program.functions[static_cast<size_t>(from.function)];
      call.what = ir::KernelCall{body.name,      from.operands, from.extents, from.items,
                                 from.per_block, from.block,    body.shared};
    }
    schedule.launches.emplace_back(std::move(call));
  }
  return schedule;
}

}  // namespace gacc::kernels
