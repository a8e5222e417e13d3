// ggml's blocks by fixed bytes, which are those of the package gguf; tests/parity/blocks.py compares many.
#include "runtime/blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace gacc {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) text += fmt::format("{:02x}", static_cast<int>(each));
  return text;
}

// 32 numbers, all of them multiples of a sixteenth.
std::vector<float> numbers() {
  std::vector<float> all;
  for (int i = 0; i < 32; ++i) all.push_back(static_cast<float>(i * 37 % 64 - 20) / 16);
  return all;
}

std::string packed(std::string_view name, std::span<const float> from) {
  const BlockFormat& format = *block_format(name);
  std::vector<std::byte> to(from.size() / 32 * static_cast<size_t>(format.bytes));
  const Status status = quantize(format, from, to.data(), "blk.0.w", 64);
  return status ? hex(to) : status.text();
}

std::vector<float> unpacked(std::string_view name, int scale_at, bool has_least) {
  const BlockFormat& format = *block_format(name);
  std::vector<std::byte> block(static_cast<size_t>(format.bytes));
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>((i * 73 + 11) % 256);
  const auto at = static_cast<size_t>(scale_at);
  block[at] = std::byte{0}, block[at + 1] = std::byte{0x38};                     // 0.5
  if (has_least) block[at + 2] = std::byte{0}, block[at + 3] = std::byte{0x34};  // 0.25
  std::vector<float> to(256);
  dequantize(format, block.data(), 0, to);
  return to;
}

TEST(Blocks, AreWrittenToTheByte) {
  EXPECT_EQ(packed("q8_0", numbers()),
            "6b25c532e250006d1ece3beb59097626d744f461127f2fe04dfd6a1bcb38e8560673");
  EXPECT_EQ(packed("Q4_0", numbers()), "60b59c257a0358a1368b1469b24791368b14");
  EXPECT_EQ(packed("Q4_1", numbers()), "333400bd40d962fb952eb751da730c953ec851ea");
}

TEST(Blocks, OfZerosHaveTheSignOfTheReference) {
  const std::vector<float> zeros(32);
  EXPECT_EQ(packed("Q8_0", zeros), std::string(68, '0'));
  EXPECT_EQ(packed("Q4_0", zeros), "0080" + std::string(32, '8'));
  EXPECT_EQ(packed("Q4_1", zeros), std::string(40, '0'));
}

TEST(Blocks, OfTheTiniestNumbersAreZero) {
  std::vector<float> tiny(32, 1e-40f);
  tiny[3] = -1e-38f;
  EXPECT_EQ(packed("Q8_0", tiny), std::string(68, '0'));
  EXPECT_EQ(packed("Q4_0", tiny), std::string(36, '0'));
}

TEST(Blocks, AreReadAsTheReferenceDoes) {
  struct Case {
    std::string_view name;
    int scale_at;
    bool has_least;
    std::array<float, 8> some;  // at the places below
    double sum, weighted;
  };
  constexpr int kAt[] = {0, 1, 31, 32, 100, 128, 200, 255};
  const Case cases[] = {
      {"Q4_K", 0, true, {253.75, 89.25, 42.25, 245.0, 53.5, 32.75, 73.5, 11.75}, 21116.0, -672.0},
      {"Q5_K", 0, true, {629.75, 89.25, 42.25, 749.0, 143.5, 88.75, 529.5, 13.75}, 45500.0, -3988.0},
      {"Q6_K", 208, false, {-715.5, 742.0, 20.0, 511.5, -254.0, 256.5, 687.5, 36.0}, -530.0, -40899.5}};
  for (const Case& each : cases) {
    const std::vector<float> got = unpacked(each.name, each.scale_at, each.has_least);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(got[static_cast<size_t>(kAt[i])], each.some[i]) << each.name;
    double sum = 0, weighted = 0;
    for (int i = 0; i < 256; ++i) {
      sum += got[static_cast<size_t>(i)];
      weighted += got[static_cast<size_t>(i)] * (i % 7 - 3);
    }
    EXPECT_EQ(sum, each.sum) << each.name;
    EXPECT_EQ(weighted, each.weighted) << each.name;
  }
}

TEST(Blocks, AreReadFromAnyNumberOn) {
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1"}) {
    const BlockFormat& format = *block_format(name);
    std::vector<float> three(96);
    std::iota(three.begin(), three.end(), -40.0f);
    std::vector<std::byte> blocks(3 * static_cast<size_t>(format.bytes));
    ASSERT_TRUE(quantize(format, three, blocks.data(), "w"));
    std::vector<float> all(96);
    dequantize(format, blocks.data(), 0, all);
    for (int64_t first = 0; first < 96; first += 5)
      for (size_t count = 0; count + static_cast<size_t>(first) <= 96; count += 3) {
        std::vector<float> some(count);
        dequantize(format, blocks.data(), first, some);
        ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first)) << name;
      }
  }
}

TEST(Blocks, OfWhatIsNotFiniteOrTooLargeAreErrorsWithTheTensorsName) {
  std::vector<float> wrong = numbers();
  wrong[5] = NAN;
  EXPECT_EQ(packed("Q8_0", wrong),
            "tensor \"blk.0.w\" cannot be Q8_0: its number 69 is nan, and only finite ones have a block");
  wrong[5] = -INFINITY;
  EXPECT_EQ(packed("Q4_1", wrong),
            "tensor \"blk.0.w\" cannot be Q4_1: its number 69 is -inf, and only finite ones have a block");
  wrong[5] = 1e30f;
  for (const char* name : {"Q8_0", "Q4_0", "Q4_1"})
    EXPECT_EQ(packed(name, wrong),
              fmt::format(
                  "tensor \"blk.0.w\" cannot be {}: its numbers 64 to 95 are too large, their scale would be "
                  "beyond a half's 65504",
                  name));
}

}  // namespace
}  // namespace gacc
