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

// Turns the byte order of every element.
inline void swap_elements(std::span<std::byte> bytes, int64_t element) {
  if (element <= 1) return;
  auto step = static_cast<size_t>(element);
  for (size_t at = 0; at + step <= bytes.size(); at += step)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + step));
}

}  // namespace gacc
