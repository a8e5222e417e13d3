// The operands and results of an op: values, buffers and numbers, as small typed ids.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "ir/contains.h"

namespace gacc::ir {

struct ValueId {
  int32_t index = -1;
  auto operator<=>(const ValueId&) const = default;
};
struct BufferId {
  int32_t index = -1;
  auto operator<=>(const BufferId&) const = default;
};
// The index in a vector that has an element for each value or buffer.
inline size_t index(ValueId value) { return static_cast<size_t>(value.index); }
inline size_t index(BufferId buffer) { return static_cast<size_t>(buffer.index); }

// An operand of an op: a value of its region, a buffer, or a number written in place (an f32 or i32 scalar).
using Operand = std::variant<ValueId, BufferId, double>;
inline const ValueId* as_value(const Operand& operand) { return std::get_if<ValueId>(&operand); }
inline const BufferId* as_buffer(const Operand& operand) { return std::get_if<BufferId>(&operand); }
inline const double* as_number(const Operand& operand) { return std::get_if<double>(&operand); }
const ValueId* as_value(Operand&&) = delete;  // the pointer would dangle
const BufferId* as_buffer(Operand&&) = delete;
const double* as_number(Operand&&) = delete;

}  // namespace gacc::ir
