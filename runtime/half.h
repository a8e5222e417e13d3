// Single precision to the half types, rounded to nearest, ties to even: the bits that a device's casts give.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace gacc {

// Any NaN stays one, quiet.
inline uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t f16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above
  if (magnitude >= 0x38800000) {  // normal: 13 bits of the fraction go, 112 is the difference of the biases
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
  }
  // Subnormal: multiples of 2^-24. The sum's own rounding leaves them in its lowest bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
}

// f32, at any address, as `dtype`, "f16" or "bf16".
inline void round_to_half(std::span<const std::byte> values, std::string_view dtype,
                          std::vector<uint16_t>& halves) {
  halves.resize(values.size() / sizeof(float));
  const auto each = [&](auto bits_of) {
    for (size_t i = 0; i < halves.size(); ++i) {
      float value = 0;
      std::memcpy(&value, values.data() + i * sizeof value, sizeof value);
      halves[i] = bits_of(value);
    }
  };
  if (dtype == "f16")
    each([](float value) { return f16_bits(value); });
  else
    each([](float value) { return bf16_bits(value); });
}

}  // namespace gacc
