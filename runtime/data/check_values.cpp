// See check_values.h.
#include "runtime/data/check_values.h"

#include <cmath>
#include <limits>

#include "runtime/data/element_types.h"
#include "runtime/data/text.h"

namespace gacc {
namespace {

template <class T>
Status check(const PlanInput& input, std::span<const T> values, const Place& place) {
  constexpr int64_t kLowest = std::numeric_limits<int32_t>::min(),
                    kHighest = std::numeric_limits<int32_t>::max();
  if (input.dtype == "f32") {
    for (size_t i = 0; std::is_floating_point_v<T> && i < values.size(); ++i)
      if (const std::string_view why = unfit_for_f32(static_cast<double>(values[i])); !why.empty())
        return Status::error("{}: {} {}, and the input {} takes finite f32", place(static_cast<int64_t>(i)),
                             values[i], why, quoted(input.name));
    return {};
  }
  const int64_t low = input.range ? 0 : kLowest, high = input.range ? *input.range - 1 : kHighest;
  for (size_t i = 0; i < values.size(); ++i) {
    T value = values[i];
    auto at = [&] { return place(static_cast<int64_t>(i)); };
    if constexpr (std::is_floating_point_v<T>)
      if (!(std::trunc(value) == value) || std::isinf(value))
        return Status::error("{}: {} is no whole number, which the input {} needs", at(), value,
                             quoted(input.name));
    // Compared as double, floats keep every value of 32 bits; as i64, integers keep all of theirs.
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    auto wide = static_cast<Wide>(value);
    const bool in_range = wide >= static_cast<Wide>(low) && wide <= static_cast<Wide>(high);
    const bool ignored = input.ignore_index && wide == static_cast<Wide>(*input.ignore_index);
    if (in_range || ignored) continue;
    if (!input.range)
      return Status::error("{}: {} does not fit into 32 bits, which the input {} has", at(), value,
                           quoted(input.name));
    return Status::error(
        "{}: the value {} is not valid for the input {}: it takes 0 to {}{}", at(), value, quoted(input.name),
        high, input.ignore_index ? fmt::format(", and {} to be ignored", *input.ignore_index) : "");
  }
  return {};
}

}  // namespace

std::string_view unfit_for_f32(double value) {
  if (!std::isfinite(value)) return "is not finite";
  return std::isfinite(static_cast<float>(value)) ? "" : "is beyond the largest f32";
}

Status check_values(const PlanInput& input, std::string_view dtype, std::span<const std::byte> bytes,
                    const Place& place) {
  Status status;
  visit_elements(dtype, bytes, [&](const auto& values) { status = check(input, values, place); });
  return status;
}

}  // namespace gacc
