// What a kernel costs on a device: time = max(arithmetic / rates, bytes / bandwidth) + launch. Products
// inside special kernels (attention, convolution) run at 0.4 of the rate of plain matrix products. The
// planner weighs recomputation with it; it is a model, and every figure made from it is called so.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/kernel.h"

namespace gacc::passes {

// Rates of a device, per second. A GPU's are those of the card that stands for its target
// (kernels/machine.h).
struct CostModel {
  std::string name{};
  double flops_f32 = 0;
  double flops_half = 0;  // products of f16 or bf16, added in f32
  double functions = 0;   // calls of exp, tanh, ...
  double bytes = 0;
  double launch = 0;  // seconds, besides its bytes and FLOPs
  // Measured seconds of the step's launches, in order, at `measured_batch` samples; empty: none. Where the
  // step has as many launches they take the model's place, scaled to the micro-batch by the model.
  std::vector<double> measured{};
  int64_t measured_batch = 0;
};

// Of a target as gaccc --target names it, or "cpu": one core with vectors. Other GPUs: as the nearest before
// them.
CostModel cost_model(std::string_view target);
bool has_cost_model(std::string_view target);

// Of one kernel at the full micro-batch, by the rates. An alias costs nothing.
double kernel_seconds(const CostModel& model, const ir::Module& module, const ir::Region& region,
                      const ir::Kernel& kernel);
// By kernel of a region; measured times where they fit.
std::vector<double> kernel_costs(const CostModel& model, const ir::Module& module, const ir::Region& region,
                                 const std::vector<ir::Kernel>& kernels);
double region_seconds(const CostModel& model, const ir::Module& module, const ir::Region& region);

int64_t kernel_flops(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel);

}  // namespace gacc::passes
