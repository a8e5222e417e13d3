// The optimizers, which follow PyTorch, and LAMB. g is the window's mean gradient, unscaled and clipped.
#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

// Buffers w, m, v .. (`buffers` of them), all f32 of one shape, then g, which fits them, then f32 scalars.
void expect_optimizer(const OpView& op, size_t buffers, size_t scalars) {
  expect_write(op, buffers);
  expect_dtype(op, 0, DType::f32);
  for (size_t i = 1; i < buffers; ++i) {
    expect_dtype(op, i, DType::f32);
    if (as_buffer(op.op.operands[i]) == nullptr || op.operand(i).shape != op.operand(0).shape)
      refuse(op, Kind::shape_mismatch, {0, i}, "it must be a buffer of that shape");
  }
  expect_scalars(op, buffers + 1, scalars, DType::f32);
}

template <size_t buffers, size_t scalars>
Types infer_optimizer(const OpView& op) {
  expect_optimizer(op, buffers, scalars);
  return {};
}

// The common part of all optimizers.
OpInfo optimizer(OpInfo op) {
  op.precision = Precision::f32;
  op.half_copy = true;
  return op;
}

// Both forms of Adam: they differ in what the second moment becomes.
template <class Second>
void adam(const FormulaView& view, Scalar lr, Scalar c1, Scalar c2, Second second) {
  const double beta1 = view.op.real("beta1"), decay = view.op.real("weight_decay");
  Scalar w = view.operand(0), g = view.operand(3);
  if (decay != 0 && view.op.flag("decoupled")) w = w * (1 - lr * decay);
  if (decay != 0 && !view.op.flag("decoupled")) g = g + decay * w;
  const Scalar m = beta1 * view.operand(1) + (1 - beta1) * g;
  const Scalar v = second(view.operand(2), g);
  const Scalar step = lr / c1, scale = 1 / sqrt(c2);
  view.result(w - step * m / (sqrt(v) * scale + view.op.real("eps")));
  view.result(m);
  view.result(v);
}

// The part that `lamb` shares with `lamb.direction`: operands w, m, v, g, .., c1, c2 (from index `c` on).
struct Lamb {
  Scalar m, v, r;
};
Lamb lamb(const FormulaView& view, int c) {
  const double beta1 = view.op.real("beta1"), beta2 = view.op.real("beta2"),
               decay = view.op.real("weight_decay");
  const Scalar w = view.operand(0), g = view.operand(3);
  const Scalar m = beta1 * view.operand(1) + (1 - beta1) * g;
  const Scalar v = beta2 * view.operand(2) + (1 - beta2) * (g * g);
  const Scalar scale1 = 1 / view.operand(c), scale2 = 1 / sqrt(view.operand(c + 1));
  Scalar r = m * scale1 / (sqrt(v) * scale2 + view.op.real("eps"));
  if (decay != 0) r = r + decay * w;
  return {m, v, r};
}

}  // namespace

//   w <- w - lr * (g + weight_decay * w)
extern const OpInfo op_sgd = optimizer({
    .name = "sgd",
    .summary = "w -= lr * (g + weight_decay * w); operands: w, g, lr",
    .operands = 3,
    .writes = operand_bits({0}),
    .attrs = {{"weight_decay", 0.0}},
    .infer = infer_optimizer<1, 1>,
    .formula =
        [](const FormulaView& view) {
          const Scalar w = view.operand(0), lr = view.operand(2);
          Scalar g = view.operand(1);
          if (const double decay = view.op.real("weight_decay"); decay != 0) g = g + decay * w;
          view.result(w - lr * g);
        },
});

//   g <- g + weight_decay * w
//   m <- updates == 0 ? g : momentum * m + (1 - dampening) * g
//   w <- w - lr * (nesterov ? g + momentum * m : m)
extern const OpInfo op_sgd_momentum = optimizer({
    .name = "sgd_momentum",
    .summary =
        "g += weight_decay * w; m = momentum * m + (1 - dampening) * g, at the first update m = g; w -= lr * "
        "m, with nesterov w -= lr * (g + momentum * m). Operands: w, m, g, lr, updates (i32: good updates "
        "before this one)",
    .operands = 5,
    .writes = operand_bits({0, 1}),
    .attrs = {{"momentum", 0.0}, {"dampening", 0.0}, {"nesterov", false}, {"weight_decay", 0.0}},
    .infer =
        [](const OpView& op) {
          expect_optimizer(op, 2, 1);
          expect_scalars(op, 4, 1, DType::i32);
          return Types();
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
});

// c1 = 1 - beta1^t and c2 = 1 - beta2^t, t counting this update:
//   decoupled:      w <- w - lr * weight_decay * w
//   not decoupled:  g <- g + weight_decay * w
//   m <- beta1 * m + (1 - beta1) * g
//   v <- beta2 * v + (1 - beta2) * g^2
//   w <- w - (lr / c1) * m / (sqrt(v) / sqrt(c2) + eps)
// What depends on lr, c1 and c2 alone is written apart, so that it is computed once and an element costs one
// division and one root.
extern const OpInfo op_adam = optimizer({
    .name = "adam",
    .summary =
        "m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; w -= lr * (m / c1) / (sqrt(v / "
        "c2) + eps). Weight decay adds weight_decay * w to g, or, decoupled, first takes lr * weight_decay * "
        "w from w. Operands: w, m, v, g, lr, c1 = 1 - beta1^t, c2 = 1 - beta2^t",
    .operands = 7,
    .writes = operand_bits({0, 1, 2}),
    .attrs = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}, {"decoupled", false}},
    .infer = infer_optimizer<3, 3>,
    .formula =
        [](const FormulaView& view) {
          const double beta2 = view.op.real("beta2");
          adam(view, view.operand(4), view.operand(5), view.operand(6),
               [&](Scalar v, Scalar g) { return beta2 * v + (1 - beta2) * (g * g); });
        },
});

//   v <- beta2^K * v + (1 - beta2) * s,  s = the sum over the window's K launches of their own mean
//   gradients' squares, before clipping and without decay
extern const OpInfo op_adam_micro = optimizer({
    .name = "adam_micro",
    .summary =
        "adam, but v = decay2 * v + (1 - beta2) * s. Operands: w, m, v, g, s (the sum of the launches' "
        "squared mean gradients), lr, c1 = 1 - beta1^t, c2 = 1 - beta2^(launches so far), decay2 = beta2^K",
    .operands = 9,
    .writes = operand_bits({0, 1, 2}),
    .attrs = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}, {"decoupled", false}},
    .infer =
        [](const OpView& op) {
          expect_write(op, 4);
          expect_optimizer(op, 3, 0);
          expect_scalars(op, 5, 4, DType::f32);
          return Types();
        },
    .formula =
        [](const FormulaView& view) {
          const double beta2 = view.op.real("beta2");
          adam(view, view.operand(5), view.operand(6), view.operand(7),
               [&](Scalar v, Scalar) { return view.operand(8) * v + (1 - beta2) * view.operand(4); });
        },
});

//   w <- w - lr * weight_decay * w - lr * sign(beta1 * m + (1 - beta1) * g)
//   m <- beta2 * m + (1 - beta2) * g
extern const OpInfo op_lion = optimizer({
    .name = "lion",
    .summary =
        "w = w (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g); m = beta2 * m + (1 - beta2) "
        "* g. Operands: w, m, g, lr",
    .operands = 4,
    .writes = operand_bits({0, 1}),
    .attrs = {{"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0.0}},
    .infer = infer_optimizer<2, 1>,
    .formula =
        [](const FormulaView& view) {
          const double beta1 = view.op.real("beta1"), beta2 = view.op.real("beta2"),
                       decay = view.op.real("weight_decay");
          const Scalar m = view.operand(1), g = view.operand(2), lr = view.operand(3);
          const Scalar mixed = beta1 * m + (1 - beta1) * g;
          // A NaN has no sign, and stays one.
          const Scalar sign = select(mixed > 0, 1.0, select(mixed < 0, -1.0, 0.0 * mixed));
          const Scalar w = decay != 0 ? view.operand(0) * (1 - lr * decay) : view.operand(0);
          view.result(w - lr * sign);
          view.result(beta2 * m + (1 - beta2) * g);
        },
});

// LAMB takes two passes over a parameter: the norms of w and of the direction r, then the step. r is computed
// twice and never stored.
extern const OpInfo op_lamb_direction{
    .name = "lamb.direction",
    .summary =
        "r = (m / c1) / (sqrt(v / c2) + eps) + weight_decay * w, with the m and v of this update as in "
        "`lamb`. Operands: w, m, v, g, c1 = 1 - beta1^t, c2 = 1 - beta2^t",
    .operands = 6,
    .attrs = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}},
    .infer = infer_float,
    .formula = [](const FormulaView& view) { view.result(lamb(view, 4).r); },
    .precision = Precision::f32,
};

extern const OpInfo op_trust_ratio{
    .name = "trust_ratio",
    .summary = "sqrt(a / b), and 1 where either is 0: the ratio of two norms, of their squares",
    .operands = 2,
    .infer = infer_float,
    .formula =
        [](const FormulaView& view) {
          const Scalar a = view.operand(0), b = view.operand(1);
          view.result(select(a == 0 || b == 0, 1.0, sqrt(a) / sqrt(b)));
        },
    .precision = Precision::f32,
};

extern const OpInfo op_lamb = optimizer({
    .name = "lamb",
    .summary =
        "m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; w -= step * r, with r of "
        "`lamb.direction`. Operands: w, m, v, g, step = lr * |w| / |r|, c1 = 1 - beta1^t, c2 = 1 - beta2^t",
    .operands = 7,
    .writes = operand_bits({0, 1, 2}),
    .attrs = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0.0}},
    .infer = infer_optimizer<3, 3>,
    .formula =
        [](const FormulaView& view) {
          const Lamb next = lamb(view, 5);
          view.result(view.operand(0) - view.operand(4) * next.r);
          view.result(next.m);
          view.result(next.v);
        },
});

}  // namespace gacc::ir
