// What `init` leaves out where its caller overwrites what it would make.
#include "codegen/host/needed_launches.h"

#include <gtest/gtest.h>

namespace gacc::host {
namespace {

// Four launches: one writes bytes 0 to 100, the next one 100 to 200, a copy takes the first 50 bytes to 300, and the
// last clears them.
const std::vector<ir::Touched> kLaunches = {
    {{}, {{0, 100}}}, {{}, {{100, 100}}}, {{{0, 50}}, {{300, 50}}}, {{}, {{0, 50}}}};

TEST(NeededLaunches, are_all_where_nothing_is_given) {
  EXPECT_EQ(needed_launches(kLaunches, {}), std::vector<bool>({true, true, true, true}));
}

TEST(NeededLaunches, are_not_those_of_which_all_is_given) {
  const std::vector<ir::Bytes> two = {{100, 30}, {130, 70}}, less = {{100, 30}, {131, 69}};
  EXPECT_EQ(needed_launches(kLaunches, two), std::vector<bool>({true, false, true, true}));
  EXPECT_EQ(needed_launches(kLaunches, less), std::vector<bool>({true, true, true, true}));
}

// Bytes 50 to 100 are given, and 0 to 50 are cleared once the copy, which nobody needs, would have read them.
TEST(NeededLaunches, are_not_those_that_only_left_out_ones_read) {
  const std::vector<ir::Bytes> given = {{50, 50}, {300, 50}};
  EXPECT_EQ(needed_launches(kLaunches, given), std::vector<bool>({false, true, false, true}));
  EXPECT_EQ(needed_launches(kLaunches, std::span(given).first(1)),
            std::vector<bool>({true, true, true, true}));
}

}  // namespace
}  // namespace gacc::host
