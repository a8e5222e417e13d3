// Conversions of every half number and every tie, one by one and in vectors, at even and odd addresses.
#include "runtime/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "tests/codegen/half_values.h"

namespace gacc {
namespace {

using codegen::half_bits;
using codegen::half_value;

ir::DType dtype(HalfType type) { return type == HalfType::f16 ? ir::DType::f16 : ir::DType::bf16; }

// NaN may keep its payload.
bool same(uint16_t got, uint16_t want, HalfType type) {
  return got == want ||
         (std::isnan(half_value(got, dtype(type))) && std::isnan(half_value(want, dtype(type))));
}

TEST(Half, EveryNumberAndEveryTie) {
  for (const HalfType type : {HalfType::f16, HalfType::bf16}) {
    std::vector<uint16_t> all;
    for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back(static_cast<uint16_t>(bits));
    std::vector<float> wide(all.size()), numbers;
    widen(type, all.data(), wide.data(), 0x10000);
    for (size_t i = 0; i < all.size(); ++i) {
      const double want = half_value(all[i], dtype(type));
      ASSERT_TRUE(wide[i] == want || (std::isnan(wide[i]) && std::isnan(want))) << "bits " << i;
      float one = 0;
      widen(type, &all[i], &one, 1);  // not in a vector
      ASSERT_TRUE(one == want || (std::isnan(one) && std::isnan(want))) << "bits " << i;
      // The middle to the next number (of f32 that is exact), and its neighbours.
      const float next = i % 0x8000 == 0x7fff ? NAN : wide[i] + (wide[i] - wide[i == 0 ? 1 : i - 1]) / 2;
      for (const float x : {wide[i], next, std::nextafter(next, 0.0F), std::nextafter(next, INFINITY)})
        numbers.push_back(x);
    }
    numbers.insert(numbers.end(), {65520.0F, 65519.996F, 1e-45F, -1e-45F, 3.4e38F, -3.4e38F, 0x1p-25F, NAN,
                                   std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0x7fffffffU)});
    std::vector<uint16_t> narrowed(numbers.size());
    narrow(type, numbers.data(), narrowed.data(), static_cast<int64_t>(numbers.size()));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint16_t want = half_bits(numbers[i], dtype(type));
      ASSERT_TRUE(same(narrowed[i], want, type)) << numbers[i] << " gives " << narrowed[i];
      uint16_t one = 0;
      narrow(type, &numbers[i], &one, 1);
      ASSERT_TRUE(same(one, want, type)) << numbers[i] << " gives " << one;
    }
    std::vector<std::byte> odd(4 * numbers.size() + 1);
    std::memcpy(odd.data() + 1, numbers.data(), 4 * numbers.size());
    std::vector<uint16_t> again;
    round_to_half(std::span(odd).subspan(1), type, again);
    ASSERT_EQ(again, narrowed);
  }
}

TEST(Half, NanBecomesAQuietOne) {
  const auto narrowed = [](HalfType type, uint32_t bits) {
    uint16_t half = 0;
    narrow(type, &bits, &half, 1);
    return half;
  };
  EXPECT_EQ(narrowed(HalfType::bf16, 0x7f800001), 0x7fc0);
  EXPECT_EQ(narrowed(HalfType::bf16, 0xffffffff), 0xffff);
  EXPECT_EQ(narrowed(HalfType::f16, 0x7f800001) & 0xfe00, 0x7e00);
  EXPECT_EQ(narrowed(HalfType::f16, 0xffffffff), 0xffff);
}

}  // namespace
}  // namespace gacc
