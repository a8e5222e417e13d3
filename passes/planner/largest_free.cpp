#include "passes/planner/largest_free.h"

#include <algorithm>

namespace gacc::passes::planner {

TakenBytes largest_free(std::vector<TakenBytes> taken, int64_t size, int64_t alignment, int64_t most) {
  taken.push_back({size, size});
  std::ranges::sort(taken, [](const TakenBytes& a, const TakenBytes& b) { return a.begin < b.begin; });
  TakenBytes best;
  int64_t free = 0;  // all before it is taken, or was looked at
  for (const TakenBytes& next : taken) {
    const int64_t bytes = std::min(next.begin / alignment * alignment - free, most);
    if (bytes > best.end - best.begin) best = {free, free + bytes};
    free = std::max(free, (next.end + alignment - 1) / alignment * alignment);
  }
  return best;
}

}  // namespace gacc::passes::planner
