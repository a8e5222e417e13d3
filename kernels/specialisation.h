// One kernel of a region as a body and a call of it, before equal bodies become one function.
#pragma once
#include <utility>
#include <vector>

#include "kernels/program.h"

namespace gacc::kernels {

// Scalar operations that one core does in some microseconds: the work of a host task.
inline constexpr int64_t kTaskOperations = 65536;
// Threads of a block, where nothing asks for another number: a multiprocessor has room for several such blocks.
inline constexpr int64_t kBlockThreads = 256;
// Elements from which on indices take 64 bits. Kernels step behind the end by less than 2^20.
inline constexpr int64_t kWideIndexElements = (int64_t{1} << 31) - (1 << 20);

// A kernel before it is known which of its constants its function keeps.
struct Specialisation {
  BodyCall call;                                       // without its function
  Body body;                                           // without its name
  std::vector<std::pair<int32_t, int32_t>> constants;  // (member, node), in the order of the key
};

// The cost of an operation of a formula: scalar operations, roughly; instructions that it becomes on a GPU, as
// codegen/emit/math.cpp writes it, and approximate units' functions among them, each exact and approximate.
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

// Specialises kernels of a region, of any form.
class Specialiser {
 public:
  Specialiser(const ir::Module& module, const ir::Region& region, Purpose purpose, const GpuTarget& gpu);
  // A product and a reshape have a call alone, and so has a hand-written kernel that is a library call on the host.
  // Throws Unfit for members whose reductions do not fit together.
  Specialisation make(const ir::Kernel& kernel) const;

 private:
  void approximate(const ir::Kernel& kernel, Body& body) const;

  const ir::Module& module_;
  const ir::Region& region_;
  const Purpose purpose_;
  const GpuTarget gpu_;
  std::vector<bool> half_{};  // half_values of the region, where the target has approximate units
};

// Specialises a kernel of formulas and reductions: any form but gemm, alias and handwritten. Throws Unfit for members
// whose reductions do not fit together.
Specialisation specialise(const ir::Module& module, const ir::Region& region, const ir::Kernel& kernel,
                          Purpose purpose);

}  // namespace gacc::kernels
