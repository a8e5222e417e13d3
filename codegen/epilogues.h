// Which pointwise kernels the built-in matrix products of the GPU do themselves, while an element of the
// result is still in a register (add a bias, relu, gelu, a residual). One launch, one barrier of a persistent
// step and one way of the result through memory less; the bits are those of the two kernels. No LLVM here.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "codegen/emit/gemm.h"
#include "codegen/emit/program.h"

namespace gacc::codegen {

struct Epilogue {
  size_t product = 0, kernel = 0;  // calls of the region
  GemmEpilogue part{};             // of the product: what it does
};

// A kernel of more scalar operations for an element stays one: a product's thread has up to 64 elements, each
// with a copy of the code.
inline constexpr int kMostEpilogueCost = 100;

// At most one for each product and each kernel, in the order of products. The kernel is the first that reads
// the result, reads it element by element, and may run as early as its product: no launch between them
// touches what it writes or writes what it reads, and it writes nothing that the product reads. The module is
// planned.
std::vector<Epilogue> find_epilogues(const ir::Module& module, const ir::Region& region,
                                     const Program& program, const std::vector<Call>& calls);

// The built-in kernel of the product that is call number `product` of the region: with its epilogue, if it
// has one among `epilogues`. Nothing and a sentence in `problem` as for choose_gemm.
std::optional<GemmKernel> choose_product(const ir::Module& module, const ir::Region& region,
                                         const std::vector<Call>& calls, size_t product,
                                         const std::vector<Epilogue>& epilogues, int capability,
                                         std::string& problem);

}  // namespace gacc::codegen
