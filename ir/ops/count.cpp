// Counting: how many elements a loss has is known only at launch, because of the batch extent.
#include "ir/ops/common.h"

namespace gacc::ir {

extern const OpInfo op_ones_like{
    .name = "ones_like",
    .summary = "i32 1 for every element of the operand, which gives the shape and is not read",
    .infer = [](const OpView& op) -> Types {
      return {{DType::i32, op.operand(0).shape}};
    },
    .formula = [](const FormulaView& view) { view.result(1); },
};

}  // namespace gacc::ir
