// The cost model's inputs: FLOPs and bytes moved of ops and regions, from the op table.
#pragma once
#include "ir/op_info.h"

namespace gacc::ir {

Cost cost(const OpView& op);
Cost cost(const Module& module, const Region& region);  // sum over the ops, at the full micro-batch

}  // namespace gacc::ir
