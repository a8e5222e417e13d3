// One kernel of a region as a body and a call of it, before equal bodies become one function.
#pragma once
#include <utility>
#include <vector>

#include "kernels/program.h"

namespace gacc::kernels {

// A kernel before it is known which of its constants its function keeps.
struct Instance {
  Call call;                                           // without its function
  Body body;                                           // without its name
  std::vector<std::pair<int32_t, int32_t>> constants;  // (member, node), in the order of the key
};

// The cost of an operation of a formula: scalar operations, roughly; instructions that it becomes on a GPU, as
// codegen/emit/math.cpp writes it, and special functions of the hardware among them, each exact and approximate.
struct ScalarCost {
  int operations;
  int instructions[2], functions[2];
};
const ScalarCost& scalar_cost(ir::ScalarOp op);
// Rough scalar operations for an element (Body::cost is the sum over a kernel's members).
int cost_of(const ir::ScalarProgram& program);
// A kernel of more of them is not done by a product: its thread has up to 64 elements, each with a copy of the
// code (pass `epilogues`).
inline constexpr int kMostEpilogueCost = 100;

// Makes the instances of a region's kernels, of any form.
class Instances {
 public:
  Instances(const ir::Module& module, const ir::Region& region, Purpose purpose, const GpuTarget& gpu);
  // A product and a reshape have a call alone, and so has a special kernel that is a library call on the host.
  // Unfit is thrown for members whose reductions do not fit together.
  Instance make(const ir::Kernel& kernel) const;

 private:
  void approximate(const ir::Kernel& kernel, Body& body) const;

  const ir::Module& module_;
  const ir::Region& region_;
  const Purpose purpose_;
  const GpuTarget gpu_;
  std::vector<bool> half_{};  // half_values of the region, where the target has approximate units
};

// Makes the instance of a kernel of formulas and reductions: any form but gemm, alias and special. Unfit are members
// whose reductions do not fit together.
Instance make_instance(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel,
                       Purpose purpose);

}  // namespace gacc::kernels
