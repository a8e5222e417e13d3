// The offset planner: places blocks that live at overlapping times in one address range, as low as it can. It
// knows nothing of ops or values; plan-memory translates to it.
#pragma once
#include <cstdint>
#include <vector>

namespace gacc::passes::planner {

// `bytes` are needed during the instants first..last, both included. Sizes are rounded to the alignment
// before.
struct Block {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct Placement {
  std::vector<int64_t> offsets{};  // by block
  int64_t height = 0;              // end of the highest block
};

// The most bytes needed at one instant: no placement is lower.
int64_t liveness_bound(const std::vector<Block>& blocks);

// The best of a portfolio of greedy orders, each placing a block in the tightest gap among the blocks it
// meets in time. Deterministic. Stops at the first placement that reaches the bound.
Placement place(const std::vector<Block>& blocks);

}  // namespace gacc::passes::planner
