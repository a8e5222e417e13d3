// Costs of kernels from the op table's FLOPs and the bytes that the kernel moves.
#include "passes/analysis/cost_model.h"

#include <algorithm>

#include "ir/cost.h"
#include "kernels/gemm.h"
#include "kernels/machine.h"

namespace gacc::passes {

namespace {

using namespace ir;

// One core at 2.5 to 3 GHz, measured (docs/BENCHMARKS.md): what products of a training step reach, and what
// kernels move whose operands are in the caches. Half types are computed in f32.
constexpr std::string_view kHost = "cpu";
constexpr double kHostFlops = 80e9, kHostFunctions = 0.65e9, kHostBytes = 30e9, kHostLaunch = 1e-6;

constexpr double kProductsF32 = 0.85;       // on a GPU, of its f32 multiply-adds, without TF32
constexpr double kFunction = 40;            // on a GPU, instructions of one call of exp, tanh, ...
constexpr double kSpecialEfficiency = 0.4;  // of products in special kernels, against matrix products

bool has_products(const Op& op) { return op.info->recompute != Recompute::cheap; }

bool half_product(const Module& module, const Region& region, const Op& op) {
  return has_products(op) && std::ranges::any_of(op.operands, [&](const Operand& operand) {
           const DType dtype = operand_type(module, region, operand).dtype;
           return dtype == DType::f16 || dtype == DType::bf16;
         });
}

// Seconds that an op's arithmetic takes.
double compute_seconds(const CostModel& model, const Module& module, const Region& region, const Op& op) {
  const OpView view{module, region, op};
  const double rate = half_product(module, region, op) ? model.flops_half : model.flops_f32;
  const bool special = op.info->lowering == Lowering::special && has_products(op);
  return static_cast<double>(cost(view).flops) / (special ? kSpecialEfficiency * rate : rate) +
         static_cast<double>(function_calls(view)) / model.functions;
}

}  // namespace

CostModel cost_model(std::string_view target) {
  if (target == kHost)
    return {std::string(kHost), kHostFlops, kHostFlops, kHostFunctions, kHostBytes, kHostLaunch, {}, 0};
  using gacc::kernels::Machine;
  const Machine& gpu = gacc::kernels::machine(target);
  CostModel model;
  model.name = target;
  model.flops_f32 = kProductsF32 * gpu.f32();
  model.flops_half = gpu.library_ceiling;
  model.functions = static_cast<double>(gpu.sms) * gpu.clock * Machine::kIssued * 32 / kFunction;
  model.bytes = gpu.copy;
  model.launch = gpu.gap + Machine::kBlockCycles / gpu.clock + gpu.memory_wait;
  return model;
}

bool has_cost_model(std::string_view target) {
  const auto number = [](std::string_view name) { return gacc::kernels::GpuTarget(name).capability; };
  return target == kHost ||
         (number(target) > 0 && number(target) == number(gacc::kernels::machine(target).target));
}

int64_t kernel_flops(const Module& module, const Region& region, const Kernel& kernel) {
  if (kernel.form == KernelForm::alias) return 0;
  int64_t flops = 0;
  for (const KernelMember& member : kernel.members)
    flops += cost(OpView{module, region, region.ops[member.op]}).flops;
  return flops;
}

double kernel_seconds(const CostModel& model, const Module& module, const Region& region,
                      const Kernel& kernel) {
  if (kernel.form == KernelForm::alias) return 0;
  const int64_t batch = module.micro_batch();
  int64_t moved = 0;
  for (const auto* list : {&kernel.reads, &kernel.writes})
    for (const Operand& operand : *list) moved += type_bytes(operand_type(module, region, operand), batch);
  double compute = 0;
  for (const KernelMember& member : kernel.members)
    compute += compute_seconds(model, module, region, region.ops[member.op]);
  return std::max(compute, static_cast<double>(moved) / model.bytes) + model.launch;
}

std::vector<double> kernel_costs(const CostModel& model, const Module& module, const Region& region,
                                 const std::vector<Kernel>& kernels) {
  std::vector<double> seconds;
  for (const Kernel& kernel : kernels) seconds.push_back(kernel_seconds(model, module, region, kernel));
  const auto launches =
      std::ranges::count_if(kernels, [](const Kernel& kernel) { return kernel.form != KernelForm::alias; });
  if (region.kind != RegionKind::step || launches != static_cast<std::ptrdiff_t>(model.measured.size()) ||
      model.measured_batch <= 0)
    return seconds;
  Module measured;  // sizes ask the module for nothing but its settings and buffers
  measured.settings = module.settings;
  measured.settings.train.micro_batch = model.measured_batch;
  measured.buffers = module.buffers;
  size_t launch = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (kernels[k].form == KernelForm::alias) continue;
    const double then = kernel_seconds(model, measured, region, kernels[k]);
    seconds[k] = model.measured[launch++] * seconds[k] / then;
  }
  return seconds;
}

double region_seconds(const CostModel& model, const Module& module, const Region& region) {
  double sum = 0;
  for (const Kernel& kernel : ir::kernels(module, region))
    sum += kernel_seconds(model, module, region, kernel);
  return sum;
}

}  // namespace gacc::passes
