// Half precision for the tests, worked out in double and apart from the code under test: a number's nearest
// f16 or bf16, ties to even, as 16 bits and back.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ir/types.h"

namespace gacc::codegen {

struct HalfFormat {
  int mantissa, smallest, largest;  // bits after the point; exponents of the normal numbers
  static HalfFormat of(ir::DType dtype) {
    return dtype == ir::DType::f16 ? HalfFormat{10, -14, 15} : HalfFormat{7, -126, 127};
  }
  int bias() const { return 1 - smallest; }
};

inline double half_value(uint16_t bits, ir::DType dtype) {
  const HalfFormat f = HalfFormat::of(dtype);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> f.mantissa, fraction = bits & ((1 << f.mantissa) - 1);
  if (exponent == 2 * f.bias() + 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, f.smallest - f.mantissa);
  return sign * std::ldexp((1 << f.mantissa) + fraction, exponent - f.bias() - f.mantissa);
}

// NaN becomes 0x7fff.
inline uint16_t half_bits(double x, ir::DType dtype) {
  const HalfFormat f = HalfFormat::of(dtype);
  if (std::isnan(x)) return 0x7fff;
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const int infinite = (2 * f.bias() + 1) << f.mantissa;
  x = std::fabs(x);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinite);
  const int exponent = x == 0 ? f.smallest : std::max(std::ilogb(x), f.smallest);
  // In units of the last place; what is rounded up to a power of two moves the exponent by itself.
  const double units = std::nearbyint(std::ldexp(x, f.mantissa - exponent));
  const double bits = units + std::ldexp(exponent - f.smallest, f.mantissa);
  return static_cast<uint16_t>(sign | (bits >= infinite ? infinite : static_cast<int>(bits)));
}

inline double nearest_half(double x, ir::DType dtype) { return half_value(half_bits(x, dtype), dtype); }

}  // namespace gacc::codegen
