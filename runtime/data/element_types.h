// From the name of an element type to the type.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gacc {

// Calls `visit` with the bytes as elements of `dtype` (runtime/data/array.h); not for an unknown one.
template <class Visit>
void visit_elements(std::string_view dtype, std::span<const std::byte> bytes, Visit visit) {
  const auto as = [&]<class T>(T) {
    visit(std::span<const T>(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)));
  };
  if (dtype == "u8") as(uint8_t{});
  if (dtype == "u16") as(uint16_t{});
  if (dtype == "i8") as(int8_t{});
  if (dtype == "i16") as(int16_t{});
  if (dtype == "i32") as(int32_t{});
  if (dtype == "i64") as(int64_t{});
  if (dtype == "f32") as(float{});
  if (dtype == "f64") as(double{});
}

}  // namespace gacc
