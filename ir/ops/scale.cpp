// The scale of the loss: where it enters the backward pass, and how a window's end moves it.
#include "ir/ops/common.h"

namespace gacc::ir {

// A placeholder that `loss-scale` replaces: only it knows the scale. Unscaled modules have the number 1
// instead.
extern const OpInfo op_seed{
    .name = "seed",
    .summary =
        "the gradient of the loss itself, from which all others follow: 1, until `loss-scale` says what it "
        "is; with inverse, what undoes it",
    .operands = 0,
    .attrs = {{"inverse", false}},
    .infer = [](const OpView&) -> Types {
      return {{DType::f32, {}}};
    },
    .formula = [](const FormulaView& view) { view.result(1.0); },
    .precision = Precision::f32,
};

// Dynamic scaling at the end of a window:
//   not ok:                      scale <- scale * backoff                 good <- 0
//   go, the interval-th in row:  scale <- min(scale * growth, ceiling)    good <- 0
//   go otherwise:                                                         good <- good + 1
// A window that is ok but makes no update (nothing counted) changes nothing.
extern const OpInfo op_scale_adjust{
    .name = "scale.adjust",
    .summary =
        "where ok is 0: scale *= backoff, good = 0; else where go is not 0: good += 1, and when that is "
        "interval, scale = min(scale * growth, ceiling), good = 0. Operands: scale, good (i32: good updates "
        "in a row), ok, go",
    .operands = 4,
    .writes = operand_bits({0, 1}),
    .attrs = {{"backoff", 0.5}, {"ceiling", 0x1p24}, {"growth", 2.0}, {"interval", int64_t{2000}}},
    .infer = [](const OpView& op) -> Types {
      expect_write(op, 0);
      expect_scalars(op, 0, 1, DType::f32);
      expect_scalars(op, 1, 3, DType::i32);
      return {};
    },
    .formula =
        [](const FormulaView& view) {
          const Scalar scale = view.operand(0), good = view.operand(1);
          const Scalar ok = view.operand(2) != 0, go = view.operand(3) != 0;
          const auto interval = static_cast<double>(view.op.integer("interval"));
          const Scalar next = good + 1;
          const Scalar grows = go && interval <= next;
          const Scalar grown = min(scale * view.op.real("growth"), view.op.real("ceiling"));
          view.result(select(ok, select(grows, grown, scale), scale * view.op.real("backoff")));
          view.result(select(ok, select(grows, 0, select(go, next, good)), 0));
        },
    .precision = Precision::f32,
};

}  // namespace gacc::ir
