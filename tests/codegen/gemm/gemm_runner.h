// Runs built-in matrix products on the CPU: the IR that becomes PTX, block by block, each thread of a block a
// fiber that gives way at barriers. It finds wrong indexing and barriers that not every thread reaches; it
// does not see the PTX text or races.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "codegen/gpu/product.h"

namespace gacc::codegen {

class GemmRunner {
 public:
  explicit GemmRunner(const std::vector<GemmKernel>& kernels);
  ~GemmRunner();
  // "" or what went wrong.
  std::string run(size_t kernel, const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gacc::codegen
