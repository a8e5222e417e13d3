// Rounding to half on the host: every half value, what lies between two, and the ends.
#include "runtime/half.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/data/byte_order.h"

namespace gacc {
namespace {

float bf16_to_float(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

// Between neighbours a < b: their middle goes to the even one, one float above it to b, one below to a.
template <class ToFloat, class ToBits>
void check_all(uint16_t infinity, ToFloat to_float, ToBits to_bits) {
  for (uint16_t half = 0; half < infinity; ++half) {
    const float a = to_float(half);
    ASSERT_EQ(to_bits(a), half);
    ASSERT_EQ(to_bits(-a), half | 0x8000);
    if (half + 1 == infinity) break;
    const float b = to_float(static_cast<uint16_t>(half + 1));
    const float middle = a + (b - a) / 2;
    ASSERT_EQ(to_bits(middle), half % 2 == 0 ? half : half + 1) << half;
    ASSERT_EQ(to_bits(std::nextafter(middle, b)), half + 1) << half;
    ASSERT_EQ(to_bits(std::nextafter(middle, a)), half) << half;
  }
}

TEST(Half, f16_rounds_to_nearest_even) {
  check_all(0x7c00, half_to_float, f16_bits);
  EXPECT_EQ(f16_bits(65519.99f), 0x7bff);
  EXPECT_EQ(f16_bits(65520), 0x7c00);
  EXPECT_EQ(f16_bits(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(f16_bits(std::numeric_limits<float>::quiet_NaN()) & 0x7e00, 0x7e00);
}

TEST(Half, bf16_rounds_to_nearest_even) {
  check_all(0x7f80, bf16_to_float, bf16_bits);
  EXPECT_EQ(bf16_bits(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_bits(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(bf16_bits(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

}  // namespace
}  // namespace gacc
