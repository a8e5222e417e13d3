// Small floating-point formats in integer arithmetic: f16 and bf16 from and to double, rounded to the nearest
// even. Internal linkage on purpose: the lane files are compiled for several instruction sets.
#pragma once
#include <cstdint>

namespace gacc::emulator {

template <class To, class From>
static inline To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

// A value rounded to a format with `mantissa` stored bits and `exponent` exponent bits, as its bit pattern.
static inline uint32_t encode_small(double value, int mantissa, int exponent, uint32_t nan) {
  const uint64_t bits = bits_as<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << (mantissa + exponent);
  const uint64_t fraction = bits & 0xfffffffffffffull;
  const int power = static_cast<int>(bits >> 52 & 0x7ff);
  const uint32_t infinity = ((1u << exponent) - 1) << mantissa;
  if (power == 0x7ff) return fraction ? nan : sign | infinity;
  if (power == 0 && fraction == 0)
    return sign;  // a subnormal double is all rest: far below every format's range
  const int bias = (1 << (exponent - 1)) - 1;
  const int target = power - 1023 + bias;       // biased exponent in the small format
  const uint64_t full = fraction | 1ull << 52;  // 53 bits
  int drop = 52 - mantissa;                     // bits rounded away
  if (target <= 0) drop += 1 - target;          // subnormal there
  uint64_t kept = drop > 63 ? 0 : full >> drop;
  const bool half = drop <= 53 && (full >> (drop - 1) & 1),
             rest = drop > 53 || (full & ((1ull << (drop - 1)) - 1));
  if (half && (rest || (kept & 1))) ++kept;
  // The hidden bit carries into the exponent by plain addition.
  const uint64_t result = target <= 0 ? kept : (static_cast<uint64_t>(target - 1) << mantissa) + kept;
  return sign | static_cast<uint32_t>(result < infinity ? result : infinity);
}

static inline uint16_t half_from(double value) {
  return static_cast<uint16_t>(encode_small(value, 10, 5, 0x7fff));
}
static inline uint16_t bf16_from(double value) {
  return static_cast<uint16_t>(encode_small(value, 7, 8, 0x7fff));
}
static inline float float_of_bf16(uint16_t bits) { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }
static inline float float_of_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, power = bits >> 10 & 31,
                 fraction = bits & 1023;
  if (power == 31) return bits_as<float>(sign | 0x7f800000u | fraction << 13);
  if (power != 0) return bits_as<float>(sign | (power + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return bits_as<float>(sign | bits_as<uint32_t>(magnitude));
}

// Subnormals become zeros of their sign.
static inline float flush(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  return bits_as<float>((bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits);
}

// x + y to odd: the last bit is set when the sum is inexact, so that a second rounding to a much shorter
// format gives what one rounding would.
static inline double add_to_odd(double x, double y) {
  const double sum = x + y;
  const double shadow = sum - x;
  const double error = (x - (sum - shadow)) + (y - shadow);
  if (error == 0 || error != error) return sum;
  const uint64_t bits = bits_as<uint64_t>(sum);
  if (bits & 1) return sum;
  const bool away = (error > 0) == (sum > 0);  // the exact sum lies further from zero
  return bits_as<double>(away ? bits + 1 : bits - 1);
}

}  // namespace gacc::emulator
