// See array.h.
#include "runtime/data/array.h"

namespace gacc {

std::span<const std::byte> elements_of(const Array& array) {
  if (!array.file) return array.bytes;
  const auto size = static_cast<size_t>(checked_product(array.shape) * element_bytes(array.dtype));
  return array.file->bytes().subspan(array.first, size);
}

int64_t element_bytes(std::string_view dtype) {
  if (dtype == "u8" || dtype == "i8") return 1;
  if (dtype == "u16" || dtype == "i16") return 2;
  if (dtype == "i32" || dtype == "f32") return 4;
  if (dtype == "i64" || dtype == "f64") return 8;
  return 0;
}

int64_t checked_product(std::span<const int64_t> extents, int64_t limit) {
  int64_t product = 1;
  for (const int64_t extent : extents) {
    if (extent < 0) return -1;
    if (extent == 0) return 0;
  }
  for (const int64_t extent : extents) {
    if (extent > limit / product) return -1;
    product *= extent;
  }
  return product;
}

}  // namespace gacc
