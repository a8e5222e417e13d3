// The offset planner: places blocks that live at overlapping times in one address range, as low as it can. It
// knows nothing of ops or values; plan-memory translates to it, gacc-plan reads it from a file.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace gacc::passes::planner {

// `bytes` are needed during the instants first..last, both included. Sizes are rounded to the alignment
// before.
struct Block {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
  int64_t length = 0;  // of its life, where the instants are not equally far apart; 0: their number
};
inline int64_t length_of(const Block& block) {
  return block.length > 0 ? block.length : int64_t{block.last} - block.first + 1;
}

struct Placement {
  std::vector<int64_t> offsets{};  // by block
  int64_t height = 0;              // end of the highest block
};

// The most bytes needed at one instant: no placement is lower.
int64_t liveness_bound(const std::vector<Block>& blocks);

// The best of a portfolio of greedy orders, each placing a block in the tightest gap among the blocks it
// meets in time. Deterministic. Stops at the first placement of height `enough` or less. The blocks `first` are placed
// before all others: where they live at one instant, one behind the other from 0 on.
Placement place_greedily(const std::vector<Block>& blocks, int64_t enough,
                         const std::vector<size_t>& first = {});

// The outcome of the search for a placement of at most some height.
struct Packing {
  std::optional<Placement> placement{};
  bool proven = false;  // without a placement: that there is none
};

// Greedy orders first, then the complete search, which takes at most `work` steps: the same input gives the same
// answer on every machine.
inline constexpr int64_t kPackWork = int64_t{1} << 32;
Packing pack(const std::vector<Block>& blocks, int64_t capacity, int64_t work = kPackWork);

// The complete search alone (pack.cpp), without the greedy orders: is there a placement of at most `capacity` bytes?
// A step of `work` is one visit of a block or section. The first runs take `first_run` steps each, later ones more.
Packing search_packing(const std::vector<Block>& blocks, int64_t capacity, int64_t work,
                       int64_t first_run = int64_t{1} << 22);

// Returns a placement of at most `most` bytes if the portfolio or a short search finds one, else the portfolio's best.
Placement place_within(const std::vector<Block>& blocks, int64_t most);

// Places as low as a bounded search gets: at the liveness bound where the portfolio or the search reaches it. Where a
// placement of at most `enough` is found, one search at the bound follows, a sixty-fourth as long.
Placement place(const std::vector<Block>& blocks, int64_t enough = 0);

// Bytes [begin, end).
struct TakenBytes {
  int64_t begin = 0, end = 0;
};

// The largest range inside [0, size) that meets none of `taken` and is of multiples of `alignment`, the first
// of equals; an empty one when none is left. Ranges of `most` bytes and more count as equal.
TakenBytes largest_free(std::vector<TakenBytes> taken, int64_t size, int64_t alignment, int64_t most);

}  // namespace gacc::passes::planner
