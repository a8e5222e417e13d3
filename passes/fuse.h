// Shared by the two halves of fuse and other passes.
#pragma once
#include "passes/pass.h"

namespace gacc::passes {

// A column_sum of fewer rows stays whole: a GPU walks so many in the time that a second launch takes (some six waits
// for memory, for 8 rows by each of at least 8 warps).
inline constexpr int64_t kRowsToCut = 1024;
inline constexpr int64_t kTotalParts = 64;  // of a large total_sum, at most

// Splits every total_sum over many elements and every column_sum over many rows, and their .acc forms, in
// two: parts that run side by side, and their sum.
void split_sums(ir::Module& module, ir::Region& region, Diag& diag);

// In how many parts the total_sum of an array without batch is made.
int64_t total_parts(const ir::Shape& shape);

// Tells whether these ops, in this order, may be one kernel of a size that `fuse` would make.
bool fits_kernel(const ir::Module& module, const ir::Region& region, const std::vector<size_t>& ops);

}  // namespace gacc::passes
