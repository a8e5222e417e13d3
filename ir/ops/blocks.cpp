// Numbers of parameters that lie in memory in blocks (ir/dtypes.def), which are no others than those that ggml reads.
#include <algorithm>

#include "ir/ops/common.h"

namespace gacc::ir {

extern const OpInfo op_dequantize{
    .name = "dequantize",
    .summary = "the numbers of a parameter in blocks, as f32 or rounded to a half type",
    .blocks = operand_bits({0}),
    .attrs = {{"to", std::string("f32")}},
    .infer = [](const OpView& op) -> Types {
      if (!is_blocks(op.operand(0).dtype)) refuse(op, Kind::type_mismatch, {0}, "it is in no blocks");
      return {{read_as(op), op.operand(0).shape}};
    },
    .reference = [](EvalView& view) { std::ranges::copy(view.operand(0).data, view.result().data.begin()); },
};

}  // namespace gacc::ir
