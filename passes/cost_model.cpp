// Costs of kernels from the op table's FLOPs and the bytes that the kernel moves.
#include "passes/cost_model.h"

#include <algorithm>

#include "ir/cost.h"

namespace gacc::passes {

namespace {

using namespace ir;

struct Device {
  std::string_view target;
  double tera_f32, tera_half, giga_bytes;  // published peaks: 10^12 FLOP/s, 10^9 byte/s
};
// T4; A100 40 GB; GeForce RTX 3090; GeForce RTX 4090; H100 SXM twice; B200; GeForce RTX 5090.
constexpr Device kDevices[] = {{"sm_75", 8.1, 65, 320},    {"sm_80", 19.5, 312, 1555},
                               {"sm_86", 35.6, 71, 936},   {"sm_89", 82.6, 165, 1008},
                               {"sm_90", 67, 989, 3350},   {"sm_90a", 67, 989, 3350},
                               {"sm_100", 75, 2250, 8000}, {"sm_120", 105, 210, 1792}};

// One core at 2.5 to 3 GHz, measured (docs/BENCHMARKS.md): what products of a training step reach, and what
// kernels move whose operands are in the caches. Half types are computed in f32.
constexpr std::string_view kHost = "cpu";
constexpr double kHostFlops = 80e9, kHostFunctions = 0.65e9, kHostBytes = 30e9, kHostLaunch = 1e-6;

constexpr double kFunctionFlops = 60;       // on a GPU, of one call of exp, tanh, ...
constexpr double kSpecialEfficiency = 0.4;  // of products in special kernels, against matrix products

const Device* find_device(std::string_view target) {
  const auto* found = std::find_if(std::begin(kDevices), std::end(kDevices),
                                   [&](const Device& device) { return device.target == target; });
  return found == std::end(kDevices) ? nullptr : found;
}

bool has_products(const Op& op) { return op.info->recompute != Recompute::cheap; }

bool half_product(const Module& module, const Region& region, const Op& op) {
  return has_products(op) && std::any_of(op.operands.begin(), op.operands.end(), [&](const Operand& operand) {
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
  CostModel model;
  if (target == kHost)
    return {std::string(kHost), kHostFlops, kHostFlops, kHostFunctions, kHostBytes, kHostLaunch, {}, 0};
  const Device* found = find_device(target);
  if (found == nullptr) return model;
  model.name = target;
  model.flops_f32 = 0.6e12 * found->tera_f32;
  model.flops_half = 0.6e12 * found->tera_half;
  model.functions = model.flops_f32 / kFunctionFlops;
  model.bytes = 0.8e9 * found->giga_bytes;
  return model;
}

bool has_cost_model(std::string_view target) { return target == kHost || find_device(target) != nullptr; }

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
  for (const auto* list : {&kernel.reads, &kernel.writes}) {
    for (const Operand& operand : *list) moved += type_bytes(operand_type(module, region, operand), batch);
  }
  double compute = 0;
  for (const KernelMember& member : kernel.members)
    compute += compute_seconds(model, module, region, region.ops[member.op]);
  return std::max(compute, static_cast<double>(moved) / model.bytes) + model.launch;
}

std::vector<double> kernel_costs(const CostModel& model, const Module& module, const Region& region,
                                 const std::vector<Kernel>& kernels) {
  std::vector<double> seconds;
  for (const Kernel& kernel : kernels) seconds.push_back(kernel_seconds(model, module, region, kernel));
  const auto launches = std::count_if(kernels.begin(), kernels.end(),
                                      [](const Kernel& kernel) { return kernel.form != KernelForm::alias; });
  if (region.kind != RegionKind::step || launches != static_cast<std::ptrdiff_t>(model.measured.size()) ||
      model.measured_batch <= 0)
    return seconds;
  Module measured;  // sizes ask the module for nothing but its settings and buffers
  measured.settings = module.settings;
  measured.settings["train.micro_batch"] = model.measured_batch;
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
  for (const Kernel& kernel : kernels(module, region)) sum += kernel_seconds(model, module, region, kernel);
  return sum;
}

}  // namespace gacc::passes
