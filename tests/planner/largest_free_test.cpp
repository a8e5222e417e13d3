// The largest range that is free, compared with trying every one.
#include "passes/planner/offsets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace gacc::passes::planner {
namespace {

constexpr int64_t kStep = 256, kMost = int64_t{32} << 20;

// Every aligned range, longer ones first.
TakenBytes by_trying(const std::vector<TakenBytes>& taken, int64_t arena) {
  for (int64_t bytes = arena / kStep * kStep; bytes > 0; bytes -= kStep) {
    for (int64_t offset = 0; offset + bytes <= arena; offset += kStep) {
      const bool free = std::none_of(taken.begin(), taken.end(), [&](const TakenBytes& t) {
        return t.begin < offset + bytes && offset < t.end;
      });
      if (free) return {offset, offset + bytes};
    }
  }
  return {};
}

TEST(LargestFree, IsWhatTryingFinds) {
  int none = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const int64_t arena = static_cast<int64_t>(random() % 16) * kStep + (random() % 2 ? 0 : random() % kStep);
    std::vector<TakenBytes> taken;
    for (size_t count = random() % 6; count > 0 && arena > 0; --count) {
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(arena));
      const auto most = static_cast<uint64_t>(std::min(arena - begin, 4 * kStep));
      taken.push_back({begin, begin + 1 + static_cast<int64_t>(random() % most)});
    }
    const TakenBytes found = largest_free(taken, arena, kStep, kMost), expected = by_trying(taken, arena);
    none += found.begin == found.end;
    EXPECT_EQ(found.end - found.begin, expected.end - expected.begin) << seed;
    if (found.begin != found.end) {
      EXPECT_EQ(found.begin, expected.begin) << seed;
    }
  }
  EXPECT_GT(none, 100);
}

TEST(LargestFree, HasALimit) {
  const TakenBytes found = largest_free({{0, kStep}, {kMost, kMost + 1}}, 5 * kMost, kStep, kMost);
  EXPECT_EQ(found.begin, kMost + kStep);
  EXPECT_EQ(found.end - found.begin, kMost);
}

}  // namespace
}  // namespace gacc::passes::planner
