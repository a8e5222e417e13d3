// The numbers that quantised types can hold, for references.
#pragma once
#include <span>

#include "ir/types.h"

namespace gacc::ir {

// Rounds each block to numbers of the type, as ggml's reference chooses them. It does so in f32.
void round_blocks(DType dtype, std::span<double> values);

}  // namespace gacc::ir
