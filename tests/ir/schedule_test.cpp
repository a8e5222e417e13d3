// How calls share a kernel: places of a block, and the blocks that have work.
#include "ir/schedule/schedule.h"

#include <gtest/gtest.h>

namespace gacc::ir {
namespace {

CallSite call(int64_t items, int64_t block, int64_t shared) {
  CallSite call;
  call.what = KernelCall{"f", {}, {}, {items, false}, block, block, shared};
  return call;
}

// `bar.sync` takes 0 to 15, and 0 is the block's own: with 16 places the last one would wait at barrier 16.
TEST(Schedule, NoMorePlacesThanBarriersAndSharedMemory) {
  EXPECT_EQ(places(call(1, 32, 0), 256), 8);
  EXPECT_EQ(places(call(1, 32, 0), 512), 15);
  EXPECT_EQ(places(call(1, 64, 0), 1024), 15);
  EXPECT_EQ(places(call(1, 64, 20480), 256), 2);
  EXPECT_EQ(places(call(1, 64, 48 * 1024), 256), 1);
  EXPECT_EQ(places(call(1, 64, 48 * 1024 + 16), 256), 0);
}

TEST(Schedule, BlocksAreThoseOfTheBusiestLevel) {
  const CallSite many = call(64 * 10, 64, 0), one = call(1, 256, 32);
  const std::vector<std::vector<const CallSite*>> levels = {{&many, &one}, {&many, &many}, {&one}};
  EXPECT_EQ(merged_block(levels), 256);
  EXPECT_EQ(merged_blocks(levels, 256, 1), 6);  // 10 blocks in places of four each, twice
}

TEST(Schedule, CountsOfTwoToTheThirtyAreTooMany) {
  EXPECT_TRUE(countable(call(int64_t{1} << 30, 256, 0), 1));
  EXPECT_FALSE(countable(call(int64_t{1} << 31, 256, 0), 1));
  EXPECT_FALSE(countable(call(int64_t{1} << 30, 1, 0), 1));
}

}  // namespace
}  // namespace gacc::ir
