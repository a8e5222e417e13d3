#include "ir/types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/kernel.h"

namespace gacc::ir {

std::optional<DType> parse_dtype(std::string_view text) {
  return enumerator<DType>(kDTypes, text, &DTypeInfo::text);
}

double rounded(DType dtype, double value) {
  if (!is_narrow(dtype) || value == 0 || !std::isfinite(value)) return value;
  // Below the normal numbers the spacing stays that of the smallest.
  const DTypeInfo& info = dtype_info(dtype);
  const int exponent = std::max(std::ilogb(value), info.smallest);
  const double spacing = std::ldexp(1.0, exponent - info.mantissa);
  const double result = std::nearbyint(value / spacing) * spacing;  // exact but for the rounding meant
  return std::fabs(result) >= std::ldexp(1.0, info.beyond) ? std::copysign(INFINITY, value) : result;
}

std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

bool has_batch(const Shape& shape) { return !shape.empty() && shape.front() == kBatch; }

int64_t elements(const Shape& shape, int64_t batch) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent == kBatch ? batch : extent;
  return count;
}

bool fits(const Shape& shape, int64_t batch) {
  constexpr int64_t kLimit = int64_t{1} << 60;  // elements; times 4 bytes stays below 2^62
  int64_t count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool symbolic = i == 0 && shape[i] == kBatch;
    const int64_t extent = symbolic ? batch : shape[i];
    if (extent < 1) return false;
    const std::optional<int64_t> product = checked_mul(count, extent);
    if (!product || *product > kLimit) return false;
    count = *product;
  }
  return true;
}

std::string shape_text(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ',';
    out += shape[i] == kBatch ? "B" : fmt::to_string(shape[i]);
  }
  return out + "]";
}

namespace {

// Returns true if `small` reaches every element of `big` in one of the ways a kernel indexes.
bool broadcasts_to(const Shape& small, const Shape& big) {
  return small.size() <= big.size() && access(small, big);
}

}  // namespace

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  if (broadcasts_to(b, a)) return a;
  if (broadcasts_to(a, b)) return b;
  return std::nullopt;
}

std::string type_text(const Type& type) {
  std::string text = fmt::format("{}{}", dtype_text(type.dtype), shape_text(type.shape));
  if (type.pitch != 0) text.insert(text.size() - 1, fmt::format(" in {}", type.pitch));
  return text;
}

int64_t row_pitch(const Type& type) { return type.pitch != 0 ? type.pitch : columns(type.shape); }

int64_t type_bytes(const Type& type, int64_t batch) {
  if (type.pitch != 0) return rows(type.shape, batch) * dtype_bytes(type.dtype, type.pitch);
  return dtype_bytes(type.dtype, elements(type.shape, batch));
}

}  // namespace gacc::ir
