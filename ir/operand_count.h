// The number of operands an op takes: OpInfo::operands, where a negative number is the least one.
#pragma once
#include <fmt/format.h>

#include "ir/op_info.h"

namespace gacc::ir {

inline bool takes_operands(const OpInfo& info, size_t count) {
  return info.operands < 0 ? count >= static_cast<size_t>(-info.operands)
                           : count == static_cast<size_t>(info.operands);
}

// "2" or "2 or more", for messages and docs.
inline std::string operand_count_text(const OpInfo& info) {
  return info.operands < 0 ? fmt::format("{} or more", -info.operands) : fmt::to_string(info.operands);
}

}  // namespace gacc::ir
