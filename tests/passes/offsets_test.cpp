// The offset planner on random blocks: sound always, near the bound mostly.
#include "passes/planner/offsets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace gacc::passes::planner {
namespace {

TEST(Offsets, PlacesAreSound) {
  int at_bound = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<Block> blocks(1 + random() % 60);
    for (Block& block : blocks) {
      block.bytes = 256 * (1 + static_cast<int64_t>(random() % 40));
      block.first = static_cast<int>(random() % 30);
      block.last = block.first + static_cast<int>(random() % 8);
    }
    const Placement placement = place(blocks);
    ASSERT_EQ(placement.offsets.size(), blocks.size());
    int64_t top = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_GE(placement.offsets[i], 0);
      EXPECT_EQ(placement.offsets[i] % 256, 0);
      top = std::max(top, placement.offsets[i] + blocks[i].bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool in_time = blocks[i].first <= blocks[j].last && blocks[j].first <= blocks[i].last;
        const bool in_space = placement.offsets[i] < placement.offsets[j] + blocks[j].bytes &&
                              placement.offsets[j] < placement.offsets[i] + blocks[i].bytes;
        EXPECT_FALSE(in_time && in_space) << "seed " << seed << ", blocks " << i << " and " << j;
      }
    }
    EXPECT_EQ(placement.height, top);
    EXPECT_GE(placement.height, liveness_bound(blocks));
    EXPECT_LE(placement.height, liveness_bound(blocks) * 5 / 4);
    at_bound += placement.height == liveness_bound(blocks) ? 1 : 0;
  }
  EXPECT_GT(at_bound, 150);
}

TEST(Offsets, NothingTakesNoRoom) {
  EXPECT_EQ(liveness_bound({}), 0);
  EXPECT_EQ(place({}).height, 0);
}

TEST(Offsets, ABlockFillsTheHoleThatFits) {
  const std::vector<Block> blocks = {{1024, 0, 0}, {512, 0, 2}, {1024, 1, 1}, {512, 1, 2}};
  EXPECT_EQ(place(blocks).height, liveness_bound(blocks));
}

TEST(Offsets, TheBoundIsTheFullestInstant) {
  EXPECT_EQ(liveness_bound({{10, 0, 3}, {20, 2, 5}, {5, 4, 4}}), 30);
}

}  // namespace
}  // namespace gacc::passes::planner
