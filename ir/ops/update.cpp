// What runs once per window: sums into buffers, and the optimizers, which follow PyTorch. g is the mean
// gradient.
#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

// Operand 0 is written and of any dtype; operands up to `last` fit it.
template <size_t last>
Types infer_write(const OpView& op, Diag& diag) {
  if (!expect_write(op, last, diag)) return std::nullopt;
  return std::vector<Type>{};
}

// Buffers w, m, v .. (`buffers` of them), all f32 of one shape, then g, which fits them, then f32 scalars.
bool expect_optimizer(const OpView& op, size_t buffers, size_t scalars, Diag& diag) {
  if (!expect_write(op, buffers, diag) || !expect_dtype(op, 0, DType::f32, diag)) return false;
  for (size_t i = 1; i < buffers; ++i) {
    if (as_buffer(op.op.operands[i]) != nullptr && op.operand(i).shape == op.operand(0).shape) continue;
    wrong(op, diag, Kind::shape_mismatch,
          fmt::format("{}, {}; it must be a buffer of that shape", describe(op, 0), describe(op, i)));
    return false;
  }
  for (size_t i = buffers + 1; i <= buffers + scalars; ++i) {
    if (!expect_dtype(op, i, DType::f32, diag) || !expect_scalar(op, i, diag)) return false;
  }
  return true;
}

}  // namespace

extern const OpInfo op_add_acc{
    .name = "add.acc",
    .summary = "buffer += x; operands: buffer, x; f32 or i32",
    .operands = 2,
    .results = 0,
    .writes = 1,
    .infer = infer_write<1>,
    .formula = [](const FormulaView& view) { view.result(view.operand(0) + view.operand(1)); },
    .precision = Precision::full,
    .recompute = Recompute::never,
    .differentiable = false,
};

extern const OpInfo op_store{
    .name = "store",
    .summary = "buffer = x; operands: buffer, x; f32 or i32",
    .operands = 2,
    .results = 0,
    .writes = 1,
    .discards = 1,
    .infer = infer_write<1>,
    .formula = [](const FormulaView& view) { view.result(view.operand(1)); },
    .precision = Precision::full,
    .recompute = Recompute::never,
    .differentiable = false,
};

//   w <- w - lr * (g + weight_decay * w)
extern const OpInfo op_sgd{
    .name = "sgd",
    .summary = "w -= lr * (g + weight_decay * w); operands: w, g, lr",
    .operands = 3,
    .results = 0,
    .writes = 1,
    .attrs = {{"weight_decay", 0.0}},
    .infer = [](const OpView& op, Diag& diag) -> Types {
      if (!expect_optimizer(op, 1, 1, diag)) return std::nullopt;
      return std::vector<Type>{};
    },
    .formula =
        [](const FormulaView& view) {
          const Scalar w = view.operand(0), lr = view.operand(2);
          Scalar g = view.operand(1);
          if (const double decay = view.op.real("weight_decay"); decay != 0) g = g + decay * w;
          view.result(w - lr * g);
        },
    .precision = Precision::full,
    .recompute = Recompute::never,
    .differentiable = false,
};

//   g <- g + weight_decay * w
//   m <- updates == 0 ? g : momentum * m + (1 - dampening) * g
//   w <- w - lr * (nesterov ? g + momentum * m : m)
extern const OpInfo op_sgd_momentum{
    .name = "sgd_momentum",
    .summary =
        "g += weight_decay * w; m = momentum * m + (1 - dampening) * g, at the first update m = g; "
        "w -= lr * m, with nesterov w -= lr * (g + momentum * m). Operands: w, m, g, lr, updates (i32: good "
        "updates before this one)",
    .operands = 5,
    .results = 0,
    .writes = 3,
    .attrs = {{"momentum", 0.0}, {"dampening", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}},
    .infer = [](const OpView& op, Diag& diag) -> Types {
      if (!expect_optimizer(op, 2, 1, diag) || !expect_dtype(op, 4, DType::i32, diag) ||
          !expect_scalar(op, 4, diag))
        return std::nullopt;
      return std::vector<Type>{};
    },
    .formula =
        [](const FormulaView& view) {
          const Scalar w = view.operand(0), lr = view.operand(3), updates = view.operand(4);
          const double momentum = view.op.real("momentum");
          Scalar g = view.operand(2);
          if (const double decay = view.op.real("weight_decay"); decay != 0) g = g + decay * w;
          const Scalar m =
              select(updates == 0, g, momentum * view.operand(1) + (1 - view.op.real("dampening")) * g);
          const Scalar direction = view.op.flag("nesterov") ? g + momentum * m : m;
          view.result(w - lr * direction);
          view.result(m);
        },
    .precision = Precision::full,
    .recompute = Recompute::never,
    .differentiable = false,
};

// c1 = 1 - beta1^t and c2 = 1 - beta2^t, t counting this update:
//   decoupled:      w <- w - lr * weight_decay * w
//   not decoupled:  g <- g + weight_decay * w
//   m <- beta1 * m + (1 - beta1) * g
//   v <- beta2 * v + (1 - beta2) * g^2
//   w <- w - (lr / c1) * m / (sqrt(v) / sqrt(c2) + eps)
// What depends on lr, c1 and c2 alone is written apart, so that it is computed once and an element costs one
// division and one root.
extern const OpInfo op_adam{
    .name = "adam",
    .summary =
        "m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; "
        "w -= lr * (m / c1) / (sqrt(v / c2) + eps). Weight decay adds weight_decay * w to g, or, decoupled, "
        "first takes lr * weight_decay * w from w. Operands: w, m, v, g, lr, c1 = 1 - beta1^t, c2 = 1 - "
        "beta2^t",
    .operands = 7,
    .results = 0,
    .writes = 7,
    .attrs = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}, {"decoupled", false}},
    .infer = [](const OpView& op, Diag& diag) -> Types {
      if (!expect_optimizer(op, 3, 3, diag)) return std::nullopt;
      return std::vector<Type>{};
    },
    .formula =
        [](const FormulaView& view) {
          const double beta1 = view.op.real("beta1"), beta2 = view.op.real("beta2"),
                       decay = view.op.real("weight_decay");
          const Scalar lr = view.operand(4);
          Scalar w = view.operand(0), g = view.operand(3);
          if (decay != 0 && view.op.flag("decoupled")) w = w * (1 - lr * decay);
          if (decay != 0 && !view.op.flag("decoupled")) g = g + decay * w;
          const Scalar m = beta1 * view.operand(1) + (1 - beta1) * g;
          const Scalar v = beta2 * view.operand(2) + (1 - beta2) * (g * g);
          const Scalar step = lr / view.operand(5), scale = 1 / sqrt(view.operand(6));
          view.result(w - step * m / (sqrt(v) * scale + view.op.real("eps")));
          view.result(m);
          view.result(v);
        },
    .precision = Precision::full,
    .recompute = Recompute::never,
    .differentiable = false,
};

}  // namespace gacc::ir
