// Numbers out of files of either byte order. gacc itself runs on little-endian machines only.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gacc {

static_assert(std::endian::native == std::endian::little, "the readers assume a little-endian machine");

template <class T>
T read_little(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
T read_big(const char* from) {
  char turned[sizeof(T)];
  std::reverse_copy(from, from + sizeof(T), turned);
  return read_little<T>(turned);
}

// Turns the byte order of every element.
inline void swap_elements(std::span<std::byte> bytes, int64_t element) {
  if (element <= 1) return;
  auto step = static_cast<size_t>(element);
  for (size_t at = 0; at + step <= bytes.size(); at += step)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + step));
}

// IEEE half to single precision: exact.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u, fraction = half & 1023u;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent > 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {  // subnormal: fraction * 2^-24
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    bits = sign | std::bit_cast<uint32_t>(value);
  }
  return std::bit_cast<float>(bits);
}

}  // namespace gacc
