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

// Rates of a device, per second. GPUs: the vendor's published peaks, times what good kernels reach of them
// (0.8 of the bandwidth, 0.6 of the arithmetic); a card of the generation stands for its target.
struct CostModel {
  std::string name = "sm_80";
  double flops_f32 = 0.6 * 19.5e12;
  double flops_half = 0.6 * 312e12;       // products of f16 or bf16, added in f32
  double functions = 0.6 * 19.5e12 / 60;  // calls of exp, tanh, ...: 60 FLOPs each
  double bytes = 0.8 * 1555e9;
  double launch = 4e-6;  // seconds
  // Measured seconds of the step's launches, in order, at `measured_batch` samples; empty: none. Where the
  // step has as many launches they take the model's place, scaled to the micro-batch by the model.
  std::vector<double> measured{};
  int64_t measured_batch = 0;
};

// Of a target as gaccc --target names it, or "cpu": one core with vectors. Unknown names: sm_80's.
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
