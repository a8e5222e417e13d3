// Whether data fit an input. For i32: whole numbers within its range, or the one that its loss ignores. For
// f32: finite numbers.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/plan.h"
#include "runtime/status.h"

namespace gacc {

// Why no f32 input takes `value`: it is not finite, or would not be as f32. "" when one does.
std::string_view unfit_for_f32(double value);

// Where an element stands, for the message.
using Place = std::function<std::string(int64_t element)>;

// `bytes` are elements of `dtype` (runtime/data/array.h).
Status check_values(const PlanInput& input, std::string_view dtype, std::span<const std::byte> bytes,
                    const Place& place);

}  // namespace gacc
