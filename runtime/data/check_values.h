// Whether data fit an i32 input: whole numbers within its range, or the one that its loss ignores.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/plan.h"
#include "runtime/status.h"

namespace gacc {

// `bytes` are elements of `dtype` (runtime/data/array.h). `place` names where an element stands, for the
// message.
Status check_values(const PlanInput& input, std::string_view dtype, std::span<const std::byte> bytes,
                    const std::function<std::string(int64_t element)>& place);

}  // namespace gacc
