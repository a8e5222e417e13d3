// Compiled without contraction: a product and a sum round each for itself, as in ggml's reference.
#include "runtime/blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/half.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr int kSmall = 32, kLarge = 256;  // numbers of a block

float read_half(const std::byte* from) {
  float value = 0;
  widen(HalfType::f16, from, &value, 1);
  return value;
}

// False where the number becomes an infinity.
bool write_half(float value, std::byte* to) {
  uint16_t half = 0;
  narrow(HalfType::f16, &value, &half, 1);
  std::memcpy(to, &half, sizeof half);
  return (half & 0x7fff) != 0x7c00;
}

int low(std::byte pair) { return static_cast<int>(pair & std::byte{15}); }
int high(std::byte pair) { return static_cast<int>(pair >> 4); }

// Returns the factor for numbers. It overflows for the tiniest scales, which are 0 as a half; whole() then gives 0.
float inverse(float scale) { return scale == 0 ? 0.0f : 1 / scale; }
int whole(float value) { return std::isfinite(value) ? static_cast<int>(value) : 0; }

// ---- 32 numbers

bool pack_q8_0(const float* from, std::byte* to) {
  float most = 0;
  for (int i = 0; i < kSmall; ++i) most = std::max(most, std::fabs(from[i]));
  const float scale = most / 127, factor = inverse(scale);
  for (int i = 0; i < kSmall; ++i)
    to[2 + i] = static_cast<std::byte>(static_cast<int8_t>(whole(std::round(from[i] * factor))));
  return write_half(scale, to);
}

void unpack_q8_0(const std::byte* from, float* to) {
  const float scale = read_half(from);
  for (int i = 0; i < kSmall; ++i) to[i] = static_cast<float>(static_cast<int8_t>(from[2 + i])) * scale;
}

// Number i is in the lower half of byte i, number i + 16 in its upper half.
template <class Code>
void pack_pairs(const Code& code, std::byte* to) {
  for (int i = 0; i < kSmall / 2; ++i)
    to[i] = static_cast<std::byte>(std::min(15, code(i)) | std::min(15, code(i + kSmall / 2)) << 4);
}

bool pack_q4_0(const float* from, std::byte* to) {
  float most = 0;  // with its sign: of two of one size, the first
  for (int i = 0; i < kSmall; ++i)
    if (std::fabs(most) < std::fabs(from[i])) most = from[i];
  const float scale = most / -8, factor = inverse(scale);
  pack_pairs([&](int i) { return whole(from[i] * factor + 8.5f); }, to + 2);
  return write_half(scale, to);
}

void unpack_q4_0(const std::byte* from, float* to) {
  const float scale = read_half(from);
  for (int i = 0; i < kSmall / 2; ++i) {
    to[i] = static_cast<float>(low(from[2 + i]) - 8) * scale;
    to[i + kSmall / 2] = static_cast<float>(high(from[2 + i]) - 8) * scale;
  }
}

bool pack_q4_1(const float* from, std::byte* to) {
  float least = from[0], most = from[0];
  for (int i = 1; i < kSmall; ++i) {
    if (from[i] < least) least = from[i];
    if (from[i] > most) most = from[i];
  }
  const float scale = (most - least) / 15, factor = inverse(scale);
  pack_pairs([&](int i) { return whole((from[i] - least) * factor + 0.5f); }, to + 4);
  const bool fits = write_half(scale, to);
  return write_half(least, to + 2) && fits;
}

void unpack_q4_1(const std::byte* from, float* to) {
  const float scale = read_half(from), least = read_half(from + 2);
  for (int i = 0; i < kSmall / 2; ++i) {
    to[i] = static_cast<float>(low(from[4 + i])) * scale + least;
    to[i + kSmall / 2] = static_cast<float>(high(from[4 + i])) * scale + least;
  }
}

// ---- 256 numbers: parts of 32 with a scale and a least number of 6 bits each, in 12 bytes

struct PartScale {
  float scale, least;
};
PartScale part_scale(const std::byte* from, int part) {
  const float scale = read_half(from), least = read_half(from + 2);
  const auto at = [&](int i) { return static_cast<int>(from[4 + i]); };
  const int of_scale = part < 4 ? at(part) & 63 : (at(part + 4) & 15) | at(part - 4) >> 6 << 4;
  const int of_least = part < 4 ? at(part + 4) & 63 : at(part + 4) >> 4 | at(part) >> 6 << 4;
  return {scale * static_cast<float>(of_scale), least * static_cast<float>(of_least)};
}

// `fifth`: the 32 bytes whose bit P is bit 4 of the numbers of part P, or null.
void unpack_parts(const std::byte* from, const std::byte* fifth, const std::byte* pairs, float* to) {
  for (int part = 0; part < kLarge / 32; ++part) {
    const PartScale by = part_scale(from, part);
    for (int i = 0; i < 32; ++i) {
      const std::byte pair = pairs[part / 2 * 32 + i];
      int code = part % 2 ? high(pair) : low(pair);
      if (fifth) code |= (static_cast<int>(fifth[i]) >> part & 1) << 4;
      to[part * 32 + i] = by.scale * static_cast<float>(code) - by.least;
    }
  }
}

void unpack_q4_k(const std::byte* from, float* to) { unpack_parts(from, nullptr, from + 16, to); }
void unpack_q5_k(const std::byte* from, float* to) { unpack_parts(from, from + 16, from + 48, to); }

// 128 bytes with the lower 4 bits, 64 with the upper 2, 16 scales of 16 numbers each, one of all.
void unpack_q6_k(const std::byte* from, float* to) {
  const float scale = read_half(from + 208);
  for (int i = 0; i < kLarge; ++i) {
    const int half = i / 128, part = i / 32 % 4;
    const std::byte pair = from[half * 64 + part % 2 * 32 + i % 32];
    const int upper = static_cast<int>(from[128 + half * 32 + i % 32]) >> 2 * part & 3;
    const int code = ((part < 2 ? low(pair) : high(pair)) | upper << 4) - 32;
    const auto own = static_cast<float>(static_cast<int8_t>(from[192 + i / 16]));
    to[i] = scale * own * static_cast<float>(code);
  }
}

constexpr BlockFormat kFormats[] = {
    {"Q8_0", kSmall, 34, unpack_q8_0, pack_q8_0, {0, 0}},
    {"Q4_0", kSmall, 18, unpack_q4_0, pack_q4_0, {0, 0}},
    {"Q4_1", kSmall, 20, unpack_q4_1, pack_q4_1, {0, 2}},
    {"Q4_K", kLarge, 144, unpack_q4_k, nullptr, {0, 2}},
    {"Q5_K", kLarge, 176, unpack_q5_k, nullptr, {0, 2}},
    {"Q6_K", kLarge, 210, unpack_q6_k, nullptr, {208, 208}},
};

}  // namespace

const BlockFormat* block_format(std::string_view name) {
  const auto same = [](char a, char b) { return a == (b >= 'a' && b <= 'z' ? b - 'a' + 'A' : b); };
  const auto* format = std::ranges::find_if(
      kFormats, [&](const BlockFormat& known) { return std::ranges::equal(known.name, name, same); });
  return format == std::end(kFormats) ? nullptr : format;
}

Status quantize(const BlockFormat& format, std::span<const float> numbers, std::byte* to,
                std::string_view tensor, int64_t first) {
  const auto each = static_cast<size_t>(format.numbers);
  for (size_t at = 0; at < numbers.size(); at += each, to += format.bytes) {
    const std::span<const float> block = numbers.subspan(at, each);
    const auto begin = first + static_cast<int64_t>(at);
    const auto wrong = std::ranges::find_if_not(block, [](float value) { return std::isfinite(value); });
    if (wrong != block.end())
      return Status::error("tensor {} cannot be {}: its number {} is {}, and only finite ones have a block",
                           in_quotes(tensor), format.name, begin + (wrong - block.begin()), *wrong);
    if (!format.pack(block.data(), to))
      return Status::error(
          "tensor {} cannot be {}: its numbers {} to {} are too large, their scale would be beyond a half's "
          "65504",
          in_quotes(tensor), format.name, begin, begin + format.numbers - 1);
  }
  return {};
}

bool all_finite(const BlockFormat& format, std::string_view blocks) {
  const auto each = static_cast<size_t>(format.bytes);
  for (; blocks.size() >= each; blocks.remove_prefix(each))
    for (const int64_t at : format.halves) {
      uint16_t half = 0;
      std::memcpy(&half, blocks.data() + at, sizeof half);
      if ((half & 0x7c00) == 0x7c00) return false;
    }
  return true;
}

void dequantize(const BlockFormat& format, const std::byte* blocks, int64_t first, std::span<float> to) {
  blocks += first / format.numbers * format.bytes;
  auto skip = static_cast<size_t>(first % format.numbers);
  const auto each = static_cast<size_t>(format.numbers);
  for (size_t at = 0; at < to.size(); blocks += format.bytes) {
    if (skip == 0 && to.size() - at >= each) {
      format.unpack(blocks, &to[at]);
      at += each;
      continue;
    }
    float whole_block[kLarge];
    format.unpack(blocks, whole_block);
    const size_t taken = std::min(each - skip, to.size() - at);
    std::copy_n(whole_block + skip, taken, &to[at]);
    at += taken, skip = 0;
  }
}

}  // namespace gacc
