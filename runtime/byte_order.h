// Numbers out of files of either byte order. gacc itself runs on little-endian machines only.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace gacc {

static_assert(std::endian::native == std::endian::little, "the readers assume a little-endian machine");

template <class T>
T read_little(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Returns numbers as the bytes that they are in files.
template <class T, size_t N>
std::string_view bytes_of(std::span<T, N> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()};
}
// Returns those of one.
template <class T>
requires std::is_trivially_copyable_v<T> std::string_view bytes_of(const T& number) {
  return bytes_of(std::span(&number, 1));
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
