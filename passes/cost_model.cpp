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

bool half_product(const Module& module, const Region& region, const Op& op) {
  return op.info->recompute != Recompute::cheap &&
         std::any_of(op.operands.begin(), op.operands.end(), [&](const Operand& operand) {
           const DType dtype = operand_type(module, region, operand).dtype;
           return dtype == DType::f16 || dtype == DType::bf16;
         });
}

}  // namespace

CostModel cost_model(std::string_view target) {
  if (target == "cpu")  // a core with 512-bit vectors at 2.5 GHz; half types are computed in f32
    return {"cpu", 60e9, 60e9, 8e9, 1e-6, {}, 0};
  const auto* found = std::find_if(std::begin(kDevices), std::end(kDevices),
                                   [&](const Device& device) { return device.target == target; });
  if (found == std::end(kDevices)) return {};
  CostModel model;
  model.name = target;
  model.flops_f32 = 0.6e12 * found->tera_f32;
  model.flops_half = 0.6e12 * found->tera_half;
  model.bytes = 0.8e9 * found->giga_bytes;
  return model;
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
  for (const auto* list : {&kernel.reads, &kernel.writes}) {
    for (const Operand& operand : *list) moved += type_bytes(operand_type(module, region, operand), batch);
  }
  double compute = 0;
  for (const KernelMember& member : kernel.members) {
    const Op& op = region.ops[member.op];
    const double flops = static_cast<double>(cost(OpView{module, region, op}).flops);
    compute += flops / (half_product(module, region, op) ? model.flops_half : model.flops_f32);
  }
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
