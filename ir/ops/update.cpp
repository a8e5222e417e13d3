// Ops that run once per window around the optimizers (optimizer.cpp): sums into buffers, clipping.
#include "ir/ops/common.h"

namespace gacc::ir {

extern const OpInfo op_add_acc{
    .name = "add.acc",
    .summary = "buffer += x; operands: buffer, x; f32 or i32",
    .operands = 2,
    .writes = operand_bits({0}),
    .infer = infer_write,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) + view.operand(1)); },
    .precision = Precision::f32,
    .accumulates = true,
};

// Adds a launch's own mean gradient, squared, for `second_moment = "micro"`. A launch that counts
// nothing has the gradient 0.
extern const OpInfo op_square_mean_acc{
    .name = "square_mean.acc",
    .summary =
        "buffer += (x / n)^2, nothing where n is 0; operands: buffer, x, n (what x sums over: a count, or an "
        "f32 sum of weights)",
    .operands = 3,
    .writes = operand_bits({0}),
    .infer =
        [](const OpView& op) {
          expect_write(op, 1);
          expect_dtype(op, 0, DType::f32);
          expect_scalar(op, 2);
          if (op.operand(2).dtype != DType::i32) expect_dtype(op, 2, DType::f32);
          return Types();
        },
    .formula =
        [](const FormulaView& view) {
          const Scalar n = view.operand(2);
          const Scalar inverse = view.op.operand(2).dtype == DType::i32 ? 1 / to_real(max(n, Scalar(1)))
                                                                        : select(n == 0, 0, 1 / n);
          const Scalar mean = view.operand(1) * inverse;
          view.result(view.operand(0) + mean * mean);
        },
    .precision = Precision::f32,
    .accumulates = true,
};

extern const OpInfo op_store{
    .name = "store",
    .summary = "buffer = x; operands: buffer, x; f32 or i32",
    .operands = 2,
    .writes = operand_bits({0}),
    .discards = operand_bits({0}),
    .infer = infer_write,
    .formula = [](const FormulaView& view) { view.result(view.operand(1)); },
    .precision = Precision::f32,
};

// The small constant is PyTorch's (clip_grad_norm_).
extern const OpInfo op_clip_factor{
    .name = "clip_factor",
    .summary = "norm > limit ? limit / (norm + 1e-6) : 1, for a gradient of that norm",
    .attrs = {{"limit", 1.0}},
    .infer = infer_float,
    .formula =
        [](const FormulaView& view) {
          const Scalar norm = view.operand(0);
          const double limit = view.op.real("limit");
          view.result(select(norm > limit, limit / (norm + 1e-6), 1.0));
        },
    .precision = Precision::f32,
};

}  // namespace gacc::ir
