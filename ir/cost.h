// The cost model's inputs: FLOPs and bytes moved of ops and regions, from the op table.
#pragma once
#include "ir/op_info.h"

namespace gacc::ir {

Cost cost(const OpView& op);
// Returns the elements of the largest operand or result, at the full micro-batch.
int64_t most_elements(const OpView& op);
// Returns the bytes of all operands and results, each read or written once: what an op moves at most.
int64_t moved_bytes(const OpView& op);
Cost cost(const Module& module, const Region& region);  // sum over the ops, at the full micro-batch

// Calls of exp, log, tanh and the like that the formula of a pointwise op makes over its domain; each takes
// tens of instructions, and none of them is among the FLOPs. 0 for every other op.
int64_t function_calls(const OpView& op);

}  // namespace gacc::ir
