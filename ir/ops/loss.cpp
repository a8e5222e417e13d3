// Losses, per element or per row: summing and counting is the frontend's. And the first maximum of a row,
// which accuracy is made of. All follow PyTorch.
#include <algorithm>
#include <cmath>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

const std::vector<AttrSpec> kClassAttrs = {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.0}};

// Logits [..,C] at operand 0 and a target i32 [..,1] at operand `target`.
void expect_classes(const OpView& op, size_t target) {
  expect_columns(op, 0);
  expect_dtype(op, target, DType::i32);
  if (!is_float(op.operand(0).dtype)) refuse(op, Kind::type_mismatch, {0}, "logits are floats");
  const Shape rows = row_shape(op.operand(0).shape);
  if (op.operand(target).shape != rows)
    refuse(op, Kind::shape_mismatch, {0, target}, "the target must be {}", shape_text(rows));
  const double smoothing = op.real("label_smoothing");
  if (!(smoothing >= 0 && smoothing <= 1))
    refuse(op, Kind::out_of_range, "label_smoothing is {}; it must be 0 to 1", smoothing);
}

// An operand that is f32 and has one element a row of operand 0, or is one number.
void expect_row_value(const OpView& op, size_t i) {
  const Shape rows = row_shape(op.operand(0).shape);
  expect_dtype(op, i, DType::f32);
  if (broadcast(rows, op.operand(i).shape) != rows)
    refuse(op, Kind::shape_mismatch, {0, i}, "it has one element a row");
}

Types infer_cross_entropy(const OpView& op) {
  expect_classes(op, 1);
  const Shape rows = row_shape(op.operand(0).shape);
  return {{DType::f32, rows}, {DType::f32, rows}, {DType::f32, rows}, {DType::i32, rows}};
}

// d_x = dloss * (exp((x - m) - l) - (1 - s) * [column == target] - s / C), 0 in ignored rows: one pointwise
// op. The maximum m and the logarithm l stay apart: m + l has lost digits where logits are far from zero.
void cross_entropy_gradient(GradBuilder& g) {
  if (!only_first(g, "its maximum and its logarithm")) return;
  g.add(0, g.b.make("cross_entropy.grad", g.d_name(0),
                    {g.operand(0), g.result(1), g.result(2), g.operand(1), *g.d_result(0)}, g.op().attrs));
}

// With m the row's maximum, t = x - m and l = log(sum(exp(t))): nll = l - t[target]. The target's t is picked
// with select and a sum: multiplying with a one-hot row would make 0 * inf = NaN.
struct Likelihood {
  Operand top, shifted, log, hit, nll;
};
Likelihood target_likelihood(Builder& b, const std::vector<std::string>& names, const Operand& x,
                             const Operand& target) {
  const std::string& name = names[0];
  const auto [top, shifted, exp, sum] = shifted_exponentials(b, name, names[1], x);
  const Operand log = b.make("log", names[2], {sum});
  const Operand column = b.make("column", name + ".column", {x});
  const Operand hit = b.make("equal", name + ".hit", {column, target});
  const Operand masked = b.make("select", name + ".masked", {hit, shifted, 0.0});
  const Operand picked = b.make("row_sum", name + ".picked", {masked});
  return {top, shifted, log, hit, b.make("sub", name + ".nll", {log, picked})};
}

// loss = (1 - s) * nll + s * (l - mean(t))
std::vector<Operand> expand_cross_entropy(Builder& b, const Op& op) {
  const std::vector<std::string> names = take_names(b, op);
  const std::string& name = names[0];
  const Operand x = op.operands[0], target = op.operands[1];
  const double smoothing = std::get<double>(*find_attr(op, "label_smoothing"));
  const auto ignored = static_cast<double>(std::get<int64_t>(*find_attr(op, "ignore_index")));
  const auto classes = static_cast<double>(b.type(x).shape.back());
  const auto [top, shifted, log, hit, nll] = target_likelihood(b, names, x, target);
  Operand row = nll;
  if (smoothing != 0) {
    const Operand total = b.make("row_sum", name + ".total", {shifted});
    const Operand mean = b.make("div", name + ".mean", {total, classes});
    const Operand flat = b.make("sub", name + ".flat", {log, mean});
    const Operand first = b.make("mul", name + ".first", {row, 1 - smoothing});
    const Operand second = b.make("mul", name + ".second", {flat, smoothing});
    row = b.make("add", name + ".smooth", {first, second});
  }
  const Operand counted = b.make("not_equal", names[3], {target, ignored});
  return {b.make("select", name, {counted, row, 0.0}), top, log, counted};
}

// Weights f32 [C] at operand `weights`.
void expect_weights(const OpView& op, size_t weights) {
  expect_dtype(op, weights, DType::f32);
  const Shape classes = {op.operand(0).shape.back()};
  if (op.operand(weights).shape != classes)
    refuse(op, Kind::shape_mismatch, {0, weights}, "the weights must be {}", shape_text(classes));
}

Types infer_weighted_cross_entropy(const OpView& op) {
  Types types = infer_cross_entropy(op);
  expect_weights(op, 2);
  types.resize(6, types.front());
  return types;
}

// With C classes, smoothing s and weights v the label's share of class c is a = v[c] * ((1 - s) * [c ==
// target] + s / C), and 0 in ignored rows:
//   loss = sum over c of a * (l - t[c])    mass = sum over c of a    weight = v[target]
//   d_x = dloss * (mass * exp((x - m) - l) - a)
void weighted_cross_entropy_gradient(GradBuilder& g) {
  if (!only_first(g, "its maximum, its logarithm and its weights")) return;
  if (g.wanted(0))
    g.add(0, g.b.make("weighted_cross_entropy.grad", g.d_name(0),
                      {g.operand(0), g.result(1), g.result(2), g.operand(1), g.operand(2), g.result(5),
                       *g.d_result(0)},
                      g.op().attrs));
  if (!g.wanted(2)) return;
  // d_v[c] = dloss * ((1 - s) * [c == target] + s / C) * (l - t[c])
  const std::string name = g.d_name(2);
  const double smoothing = std::get<double>(*find_attr(g.op(), "label_smoothing"));
  const double share = smoothing / static_cast<double>(g.b.type(g.operand(0)).shape.back());
  const Operand column = g.b.make("column", name + ".column", {g.operand(0)});
  const Operand hit = g.b.make("equal", name + ".hit", {column, g.operand(1)});
  const Operand part = g.b.make("select", name + ".part", {hit, 1 - smoothing + share, share});
  const Operand shifted = g.b.make("sub", name + ".shifted", {g.operand(0), g.result(1)});
  const Operand far = g.b.make("sub", name + ".far", {g.result(2), shifted});
  const Operand each = g.b.make("mul", name + ".each", {part, far});
  const Operand scaled = g.b.make("mul", name + ".scaled", {each, *g.d_result(0)});
  g.add(2, g.b.make("select", name, {g.result(3), scaled, 0.0}));
}

std::vector<Operand> expand_weighted_cross_entropy(Builder& b, const Op& op) {
  const std::vector<std::string> names = take_names(b, op);
  const std::string& name = names[0];
  const Operand x = op.operands[0], target = op.operands[1], weights = op.operands[2];
  const double smoothing = std::get<double>(*find_attr(op, "label_smoothing"));
  const auto ignored = static_cast<double>(std::get<int64_t>(*find_attr(op, "ignore_index")));
  const double share = smoothing / static_cast<double>(b.type(x).shape.back());
  const auto [top, shifted, log, hit, nll] = target_likelihood(b, names, x, target);
  const Operand own = b.make("select", name + ".own", {hit, weights, 0.0});
  Operand weight = b.make("row_sum", name + ".sum_own", {own});
  Operand row = b.make("mul", name + ".weighted", {nll, weight});
  Operand mass = weight;
  if (smoothing != 0) {
    const Operand far = b.make("sub", name + ".far", {log, shifted});
    const Operand each = b.make("mul", name + ".each", {far, weights});
    const Operand total = b.make("row_sum", name + ".total", {each});
    const Operand first = b.make("mul", name + ".first", {row, 1 - smoothing});
    const Operand second = b.make("mul", name + ".second", {total, share});
    row = b.make("add", name + ".smooth", {first, second});
    const Operand part = b.make("select", name + ".part", {hit, 1 - smoothing + share, share});
    const Operand shares = b.make("mul", name + ".shares", {part, weights});
    mass = b.make("row_sum", name + ".sum_shares", {shares});
  }
  const Operand counted = b.make("not_equal", names[3], {target, ignored});
  weight = b.make("select", names[4], {counted, weight, 0.0});
  mass = b.make("select", names[5], {counted, mass, 0.0});
  return {b.make("select", name, {counted, row, 0.0}), top, log, counted, weight, mass};
}

// The reference of both forms, with weights or without.
void cross_entropy_reference(EvalView& view) {
  const bool weighted = view.op.op.operands.size() == 3;
  const double smoothing = view.op.real("label_smoothing");
  const auto weight = [&](int64_t c) { return weighted ? view.operand(2).data[c] : 1; };
  each_row(view, [&](int64_t i, const double* row, int64_t columns) {
    const auto [top, sum] = row_exponentials(row, columns);
    const double log = std::log(sum);
    const auto wanted = static_cast<int64_t>(view.operand(1).data[i]);
    double loss = 0, mass = 0;
    const bool counted = wanted != view.op.integer("ignore_index");
    for (int64_t c = 0; counted && c < columns; ++c) {
      const double share = smoothing / static_cast<double>(columns) + (c == wanted ? 1 - smoothing : 0);
      mass += weight(c) * share;
      if (share != 0) loss += weight(c) * share * (log - (row[c] - top));
    }
    view.result(0).data[i] = loss;
    view.result(1).data[i] = top;
    view.result(2).data[i] = log;
    view.result(3).data[i] = counted;
    if (!weighted) return;
    view.result(4).data[i] = counted ? weight(wanted) : 0;
    view.result(5).data[i] = mass;
  });
}

// Returns the label's share of the class in this column: (1 - s) * [column == target] + s / C.
Scalar label_share(const FormulaView& view, const Scalar& target) {
  const double smoothing = view.op.real("label_smoothing");
  const double each = smoothing / static_cast<double>(view.op.operand(0).shape.back());
  return select(column_of(view, 0) == target, 1 - smoothing + each, each);
}

// Both forms of the loss, and of its gradient.
template <bool weighted>
OpInfo cross_entropy(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .operands = weighted ? 3 : 2,
          .results = weighted ? 6 : 4,
          .attrs = kClassAttrs,
          .infer = weighted ? infer_weighted_cross_entropy : infer_cross_entropy,
          .gradient = weighted ? weighted_cross_entropy_gradient : cross_entropy_gradient,
          .expand = weighted ? expand_weighted_cross_entropy : expand_cross_entropy,
          .reference = cross_entropy_reference,
          .saves = Saves::operands,
          .precision = Precision::f32};
}

template <bool weighted>
OpInfo cross_entropy_grad(const OpInfo& of, std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .operands = weighted ? 7 : 5,
          .numbers = 3,
          .numbered = [](const OpView& op) { return op.operand(0).shape.back(); },
          .attrs = kClassAttrs,
          .infer = [](const OpView& op) -> Types {
            expect_classes(op, 3);
            if (weighted) expect_weights(op, 4);
            for (size_t i = 1; i < op.op.operands.size(); ++i)
              if (i != 3 && (i != 4 || !weighted)) expect_row_value(op, i);
            return {{DType::f32, op.operand(0).shape}};
          },
          .formula =
              [](const FormulaView& view) {
                const Scalar x = view.operand(0), top = view.operand(1), log = view.operand(2),
                             target = view.operand(3), weight = weighted ? view.operand(4) : 1,
                             mass = weighted ? view.operand(5) : 1, dloss = view.operand(weighted ? 6 : 4);
                const auto ignored = static_cast<double>(view.op.integer("ignore_index"));
                const Scalar share = label_share(view, target);
                const Scalar difference =
                    weighted ? mass * exp((x - top) - log) - weight * share : exp((x - top) - log) - share;
                view.result(select(target == ignored, 0, dloss * difference));
              },
          .precision = Precision::f32,
          .gradient_of = &of};
}

}  // namespace

extern const OpInfo op_cross_entropy = cross_entropy<false>(
    "cross_entropy",
    "per row, with y = log_softmax(x): -(1 - label_smoothing) * y[target] - label_smoothing * mean(y), 0 "
    "where the target is ignore_index. Operands: logits x [..,C], target i32 [..,1]; results, each "
    "[..,1]: loss, max(x), log(sum(exp(x - max(x)))), counted (i32: 0 in ignored rows, else 1)");

extern const OpInfo op_cross_entropy_grad = cross_entropy_grad<false>(
    op_cross_entropy, "cross_entropy.grad",
    "dloss * (exp((x - max) - log) - (1 - label_smoothing) * [column == target] - label_smoothing / C), "
    "0 in ignored rows; operands: logits x [..,C], the row's max and log of `cross_entropy` [..,1], "
    "target i32 [..,1], dloss [..,1] or scalar");

extern const OpInfo op_weighted_cross_entropy = cross_entropy<true>(
    "weighted_cross_entropy",
    "`cross_entropy` with a weight for each class: per row -(1 - label_smoothing) * weights[target] * "
    "y[target] - label_smoothing * mean(weights * y). Operands: logits x [..,C], target i32 [..,1], "
    "weights f32 [C]; results, each [..,1]: loss, max, log and counted as `cross_entropy`; "
    "weights[target], 0 in ignored rows; mass, what the weights of y add up to");

extern const OpInfo op_weighted_cross_entropy_grad = cross_entropy_grad<true>(
    op_weighted_cross_entropy, "weighted_cross_entropy.grad",
    "dloss * (mass * exp((x - max) - log) - weights * ((1 - label_smoothing) * [column == target] + "
    "label_smoothing / C)), 0 in ignored rows; operands: logits x [..,C], the row's max and log [..,1], "
    "target i32 [..,1], weights f32 [C], mass [..,1], dloss [..,1] or scalar");

namespace {

// The gradient of f(x - y), f the op whose gradient is `op`:  d_x = f'(x - y) dy    d_y = -d_x
template <const char* op>
void difference_gradient(GradBuilder& g) {
  const std::string name = g.d_name(g.wanted(0) ? 0 : 1);
  const Operand difference = g.b.make("sub", name + ".sub", {g.operand(0), g.operand(1)});
  const Operand d = g.b.make(op, name, {difference, *g.d_result()});
  g.add(0, d);
  if (g.wanted(1)) g.add(1, g.b.make("neg", g.d_name(1), {d}));
}
constexpr char kSquareGrad[] = "square.grad", kAbsGrad[] = "abs.grad";

}  // namespace

extern const OpInfo op_squared_error{
    .name = "squared_error",
    .summary = "(x - y)^2",
    .operands = 2,
    .infer = infer_float,
    .formula =
        [](const FormulaView& view) {
          const Scalar difference = view.operand(0) - view.operand(1);
          view.result(difference * difference);
        },
    .gradient = difference_gradient<kSquareGrad>,
    .saves = Saves::operands,
    .precision = Precision::f32,
};

extern const OpInfo op_absolute_error{
    .name = "absolute_error",
    .summary = "|x - y|; the derivative at 0 is 0",
    .operands = 2,
    .infer = infer_float,
    .formula = [](const FormulaView& view) { view.result(abs(view.operand(0) - view.operand(1))); },
    .gradient = difference_gradient<kAbsGrad>,
    .saves = Saves::operands,
    .precision = Precision::f32,
};

extern const OpInfo op_huber{
    .name = "huber",
    .summary = "x^2 / 2 where |x| < delta, else delta * (|x| - delta / 2)",
    .attrs = {{"delta", 1.0}},
    .infer = infer_float,
    .formula =
        [](const FormulaView& view) {
          const double delta = view.op.real("delta");
          const Scalar size = abs(view.operand(0));
          view.result(select(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta)));
        },
    .derivative =
        [](Scalar x, Scalar dy, const OpView& op) {
          const double delta = op.real("delta");
          return dy * max(min(x, delta), -delta);
        },
    .saves = Saves::operands,
    .precision = Precision::f32,
};

extern const OpInfo op_bce_with_logits{
    .name = "bce_with_logits",
    .summary =
        "max(x, 0) - x * t + log(1 + exp(-|x|)), the binary cross-entropy of sigmoid(x) with the target t; "
        "operands: x, t",
    .operands = 2,
    .infer = infer_float,
    .formula =
        [](const FormulaView& view) {
          const Scalar x = view.operand(0), t = view.operand(1);
          // log(1 + e) to full relative precision: what 1 + e loses of e is put back by the ratio e / ((1 +
          // e) - 1).
          const Scalar e = exp(-abs(x));
          const Scalar u = 1 + e;
          const Scalar log1p = select(u == 1, e, log(u) * e / select(u == 1, 1, u - 1));
          view.result(max(x, 0) - x * t + log1p);
        },
    // d_x = (sigmoid(x) - t) dy    d_t = -x dy
    .gradient =
        [](GradBuilder& g) {
          if (g.wanted(0)) {
            const Operand p = g.b.make("sigmoid", g.d_name(0) + ".sigmoid", {g.operand(0)});
            const Operand difference = g.b.make("sub", g.d_name(0) + ".sub", {p, g.operand(1)});
            g.add(0, g.b.make("mul", g.d_name(0), {difference, *g.d_result()}));
          }
          if (g.wanted(1)) {
            const Operand product = g.b.make("mul", g.d_name(1) + ".mul", {g.operand(0), *g.d_result()});
            g.add(1, g.b.make("neg", g.d_name(1), {product}));
          }
        },
    .saves = Saves::operands,
    .precision = Precision::f32,
};

extern const OpInfo op_row_argmax{
    .name = "row_argmax",
    .summary =
        "index of the row's first maximum, i32: [..,C] to [..,1]; C where the row holds a NaN and so has "
        "none",
    .infer = [](const OpView& op) -> Types {
      expect_columns(op, 0);
      expect_float(op, 0);
      return {{DType::i32, row_shape(op.operand(0).shape)}};
    },
    .expand =
        [](Builder& b, const Op& op) {
          const std::string name = take_name(b, op, 0);
          const Operand x = op.operands[0];
          const auto none = static_cast<double>(b.type(x).shape.back());
          const Operand top = b.make("row_max", name + ".max", {x});
          const Operand hit = b.make("equal", name + ".hit", {x, top});
          const Operand column = b.make("column", name + ".column", {x});
          const Operand candidate = b.make("select", name + ".candidate", {hit, column, none});
          return std::vector<Operand>{b.make("row_min", name, {candidate})};
        },
    .reference =
        [](EvalView& view) {
          each_row(view, [&](int64_t r, const double* row, int64_t columns) {
            const bool ordered = std::none_of(row, row + columns, [](double v) { return std::isnan(v); });
            const int64_t best = ordered ? std::max_element(row, row + columns) - row : columns;
            view.result().data[r] = static_cast<double>(best);
          });
        },
    .precision = Precision::f32,
};

}  // namespace gacc::ir
