// Half precision on the host: runs of f16 or bf16 numbers to f32 and back. The same bits on every CPU: f16 by
// F16C where there is that, else by integers; bf16 always by integers (the CPU's own instruction loses
// denormal numbers). A NaN stays a quiet NaN with its sign and its upper payload.
#pragma once
#include "ir/types.h"

namespace gacc::host {

using Element = ir::DType;  // f32, f16 or bf16

// `type` is f16 or bf16. narrow rounds to nearest even. Runs may begin anywhere and must not overlap.
void widen(Element type, const uint16_t* from, float* to, int64_t count);
void narrow(Element type, const float* from, uint16_t* to, int64_t count);

}  // namespace gacc::host
