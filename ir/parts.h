// The bound of the parts in which a sum is made.
#pragma once
#include <cstdint>

namespace gacc::ir {

inline constexpr int64_t kMostParts = 65536;  // of `total_sum` and `column_sum`

}  // namespace gacc::ir
