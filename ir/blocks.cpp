#include "ir/types.h"

#include <algorithm>
#include <cmath>

namespace gacc::ir {

void round_blocks(DType dtype, std::span<double> values) {
  const auto half = [](float value) { return static_cast<float>(rounded(DType::f16, value)); };
  const auto size = static_cast<size_t>(dtype_info(dtype).block);
  for (size_t first = 0; first < values.size(); first += size) {
    const std::span<double> block = values.subspan(first, size);
    const auto [least, most] = std::ranges::minmax(block);
    double widest = 0;
    for (const double value : block)
      if (std::fabs(widest) < std::fabs(value)) widest = value;
    const auto low = static_cast<float>(least), high = static_cast<float>(most);
    const auto far = static_cast<float>(widest);
    float scale = 0, zero = 0, shift = 0;
    int top = 15;
    if (dtype == DType::q8_0) scale = std::fabs(far) / 127, top = 127;
    if (dtype == DType::q4_0) scale = far / -8, shift = 8;
    if (dtype == DType::q4_1) scale = (high - low) / 15, zero = low;
    const float inverse = scale != 0 ? 1 / scale : 0;
    for (double& value : block) {
      const float steps = (static_cast<float>(value) - zero) * inverse;
      const float whole =
          dtype == DType::q8_0 ? std::round(steps) : std::floor(steps + (shift + 0.5F)) - shift;
      value = half(scale) * std::min(whole, static_cast<float>(top) - shift) + half(zero);
    }
  }
}

}  // namespace gacc::ir
