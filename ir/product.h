// A matrix product as its op says it: what a launch of it needs to know on any device.
#pragma once
#include <optional>

#include "ir/kernel.h"
#include "ir/region_facts.h"

namespace gacc::ir {

// An operand as the matrix [product of its leading extents, last extent].
struct Matrix {
  Extent rows, columns;
};
Matrix matrix(const Shape& shape);

// Operands and extents of the call of a kernel of form gemm; all else is left as it is by default.
ProductCall product_of(const Module& module, const Region& region, const Op& op);

// Extents of a product of half types that a library may take as the next multiple of kLibraryStep (ir/row_pitch.h).
// Beyond them it reads zeros, in the room of a buffer and in the gaps of A's rows, so the sums are the same; it writes
// into the gaps of C's rows or into the room of C. The module is planned.
struct Rounded {
  int64_t m = 0, n = 0, k = 0;  // 0: as the op has it
};
Rounded rounded_extents(const Module& module, const Region& region, const RegionFacts& facts, const Op& op);

// The parameter [n] that `op` adds to each row of the product C [.., n] in place, when that is all it does
// and everything is f32.
std::optional<BufferId> bias_of(const Module& module, const Region& region, const Op& op,
                                const StorageRoots& root, const Operand& c);
inline constexpr int64_t kBiasAlignment = 16;  // bytes: libraries ask for it

}  // namespace gacc::ir
