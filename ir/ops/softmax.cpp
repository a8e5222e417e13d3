// Softmax over the last axis: composites of row reductions and pointwise ops.
#include <cmath>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

Types infer_rows_kept(const OpView& op) {
  expect_columns(op, 0);
  return infer_float(op);
}

}  // namespace

extern const OpInfo op_softmax{
    .name = "softmax",
    .summary = "exp(x) / sum of exp(x), over the last axis",
    .local = true,
    .infer = infer_rows_kept,
    // d_x = y * (dy - sum(dy * y))
    .gradient =
        [](GradBuilder& g) {
          const std::string name = g.d_name(0);
          const Operand weighted = g.b.make("mul", name + ".weighted", {*g.d_result(), g.result()});
          const Operand dot = g.b.make("row_sum", name + ".dot", {weighted});
          const Operand centred = g.b.make("sub", name + ".centred", {*g.d_result(), dot});
          g.add(0, g.b.make("mul", name, {g.result(), centred}));
        },
    .expand =
        [](Builder& b, const Op& op) {
          const std::string name = take_name(b, op, 0);
          const Exponentials row = shifted_exponentials(b, name, name + ".max", op.operands[0]);
          return std::vector<Operand>{b.make("div", name, {row.exp, row.sum})};
        },
    .reference =
        [](EvalView& view) {
          each_row(view, [&](int64_t r, const double* x, int64_t columns) {
            const auto [top, sum] = row_exponentials(x, columns);
            for (int64_t c = 0; c < columns; ++c)
              view.result().data[r * columns + c] = std::exp(x[c] - top) / sum;
          });
        },
    .saves = Saves::result,
    .precision = Precision::f32,
};

extern const OpInfo op_log_softmax{
    .name = "log_softmax",
    .summary = "x - log(sum of exp(x)), over the last axis",
    .local = true,
    .infer = infer_rows_kept,
    // d_x = dy - exp(y) * sum(dy)
    .gradient =
        [](GradBuilder& g) {
          const std::string name = g.d_name(0);
          const Operand sum = g.b.make("row_sum", name + ".sum", {*g.d_result()});
          const Operand softmax = g.b.make("exp", name + ".exp", {g.result()});
          const Operand part = g.b.make("mul", name + ".part", {softmax, sum});
          g.add(0, g.b.make("sub", name, {*g.d_result(), part}));
        },
    .expand =
        [](Builder& b, const Op& op) {
          const std::string name = take_name(b, op, 0);
          const Exponentials row = shifted_exponentials(b, name, name + ".max", op.operands[0]);
          const Operand log = b.make("log", name + ".log", {row.sum});
          return std::vector<Operand>{b.make("sub", name, {row.shifted, log})};
        },
    .reference =
        [](EvalView& view) {
          each_row(view, [&](int64_t r, const double* x, int64_t columns) {
            const auto [top, sum] = row_exponentials(x, columns);
            const double log = std::log(sum);
            for (int64_t c = 0; c < columns; ++c) view.result().data[r * columns + c] = x[c] - top - log;
          });
        },
    .saves = Saves::result,
    .precision = Precision::f32,
};

}  // namespace gacc::ir
