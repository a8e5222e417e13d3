// Bytes that nothing uses.
#pragma once
#include <cstdint>
#include <vector>

namespace gacc::passes::planner {

// Bytes [begin, end).
struct TakenBytes {
  int64_t begin = 0, end = 0;
};

// The largest range inside [0, size) that meets none of `taken` and is of multiples of `alignment`, the first
// of equals; an empty one when none is left. Ranges of `most` bytes and more count as equal.
TakenBytes largest_free(std::vector<TakenBytes> taken, int64_t size, int64_t alignment, int64_t most);

}  // namespace gacc::passes::planner
