// The complete search behind offsets.h: is there a placement of at most `capacity` bytes?
#pragma once
#include <cstdint>
#include <vector>

#include "passes/planner/offsets.h"

namespace gacc::passes::planner {

// Without the greedy portfolio. A step of `work` is one visit of a block or section. The first runs take
// `first_run` steps each, later ones more.
Packing search_packing(const std::vector<Block>& blocks, int64_t capacity, int64_t work,
                       int64_t first_run = int64_t{1} << 22);

}  // namespace gacc::passes::planner
