// Ops that work on one position of a sequence at a time: what may be done for a part of the positions.
#pragma once
#include "ir/op_info.h"

namespace gacc::passes {

// Tells whether a value of this shape has a row (or more) for each of so many positions: [B,positions, ..].
bool has_rows(const ir::Shape& shape, int64_t positions);

// Returns whether each position of the op's results follows from the same position of its operands alone, or its result
// is a sum over positions.
bool works_by_row(const ir::OpView& op, int64_t positions);

}  // namespace gacc::passes
