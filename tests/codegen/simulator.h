// Executes the GPU's kernels on the CPU: the very IR that becomes PTX, thread by thread, with warps' shuffles
// and blocks' barriers. It finds wrong indexing, wrong reductions and collectives that not all threads of a
// warp reach; it does not see the PTX text, races or memory order.
#pragma once
#include <memory>

#include "kernels/program.h"

namespace gacc::codegen {

using namespace kernels;
using kernels::ModuleKernels;

// The host's kernels as LLVM IR text, after the passes, in vectors of `lanes`.
std::string host_llvm_ir(const ModuleKernels& program, unsigned lanes);

class Simulator {
 public:
  // The kernels as for a GPU of this capability; 0 has not even f16 conversions.
  explicit Simulator(const ModuleKernels& program, int capability = 75);
  ~Simulator();
  // "" or what went wrong.
  std::string launch(const BodyCall& call, char* const* operands, const std::vector<int64_t>& extents,
                     int64_t batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gacc::codegen
