// Normalisation over the last axis.
#include <cmath>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

// Returns x times the factor of a norm, offset + weight. Neither is rounded to a half first, as their sum would be.
Operand times_factor(Builder& b, const std::string& name, const Operand& x, const Operand& weight,
                     const Op& norm) {
  const double offset = std::get<double>(*find_attr(norm, "offset"));
  if (offset == 0) return b.make("mul", name, {x, weight});
  const Operand scaled = b.make("mul", name + ".by_weight", {x, weight});
  return b.make("add", name,
                {scaled, offset == 1 ? x : Operand(b.make("mul", name + ".by_offset", {x, offset}))});
}

Types infer_layer_norm(const OpView& op) {
  expect_columns(op, 0);
  expect_float(op, 0);
  const Type x = op.operand(0);
  const Shape features{x.shape.back()};
  for (size_t i = 1; i < 3; ++i) {
    if (op.operand(i).shape == features) continue;
    if (i == 2 && as_number(op.op.operands[i]) != nullptr) continue;
    refuse(op, Kind::shape_mismatch, {0, i}, "it must have the shape {}", shape_text(features));
  }
  const Type row{DType::f32, row_shape(x.shape)};
  return {{DType::f32, x.shape}, row, row};
}

// With h = (x - mean) * rstd, the normalised x, and g = dy * (offset + weight), means taken over the row:
//   d_x = rstd * (g - mean(g) - h * mean(g * h))    d_weight = sum(dy * h)    d_bias = sum(dy)
void layer_gradient(GradBuilder& g) {
  if (!only_first(g, "its mean and rstd")) return;
  const Operand x = g.operand(0), dy = *g.d_result(0);
  const std::string name = g.d_name(g.wanted(0) ? 0 : 1);
  Operand h = 0.0;
  if (g.wanted(0) || g.wanted(1)) {
    const Operand centred = g.b.make("sub", name + ".centred", {x, g.result(1)});
    h = g.b.make("mul", name + ".normal", {centred, g.result(2)});
  }
  if (g.wanted(0)) {
    const Operand scaled = times_factor(g.b, name + ".scaled", dy, g.operand(1), g.op());
    g.add(0, normal_rows_gradient(g.b, name, name, scaled, h, g.result(2)));
  }
  if (g.wanted(1)) g.add(1, g.b.make("mul", g.d_name(1) + ".rows", {dy, h}));
  if (g.wanted(2)) g.add(2, dy);
}

std::vector<Operand> expand(Builder& b, const Op& op) {
  const std::vector<std::string> names = take_names(b, op);
  const std::string& name = names[0];
  const double eps = std::get<double>(*find_attr(op, "eps"));
  const NormalRows rows = normal_rows(b, name, names[1], names[2], op.operands[0], eps);
  const Operand scaled = times_factor(b, name + ".scaled", rows.normal, op.operands[1], op);
  return {b.make("add", name, {scaled, op.operands[2]}), rows.mean, rows.rstd};
}

void reference(EvalView& view) {
  const std::vector<double>& bias = view.operand(2).data;
  const double offset = view.op.real("offset");
  each_row(view, [&](int64_t r, const double* row, int64_t columns) {
    const auto [mean, rstd] = row_statistics(row, columns, view.op.real("eps"));
    for (int64_t c = 0; c < columns; ++c) {
      const auto i = static_cast<size_t>(c);
      view.result(0).data[r * columns + c] =
          (row[c] - mean) * rstd * (offset + view.operand(1).data[i]) + bias[bias.size() == 1 ? 0 : i];
    }
    view.result(1).data[r] = mean;
    view.result(2).data[r] = rstd;
  });
}

}  // namespace

extern const OpInfo op_layer_norm{
    .name = "layer_norm",
    .summary =
        "(x - mean) * rstd * (offset + weight) + bias over the last axis; rstd = 1 / sqrt(biased variance + "
        "eps). Operands: x, weight, bias (a vector or a number); results: y, mean, rstd, the last two "
        "[..,1]. The "
        "variance is the mean of the squared deviations, in a second pass over the row",
    .operands = 3,
    .results = 3,
    .local = true,
    .attrs = {{"eps", 1e-5}, {"offset", 0.0}},
    .infer = infer_layer_norm,
    .gradient = layer_gradient,
    .expand = expand,
    .reference = reference,
    .saves = Saves::operands,
    .precision = Precision::f32,
};

namespace {

Types infer_rms_norm(const OpView& op) {
  expect_columns(op, 0);
  expect_float(op, 0);
  const Type x = op.operand(0);
  const Shape features{x.shape.back()};
  if (op.operand(1).shape != features)
    refuse(op, Kind::shape_mismatch, {0, 1}, "it must have the shape {}", shape_text(features));
  return {{DType::f32, x.shape}, {DType::f32, row_shape(x.shape)}};
}

// With h = x * rstd and g = dy * (offset + weight), the mean taken over the row:
//   d_x = rstd * (g - h * mean(g * h))    d_weight = sum(dy * h)
void rms_gradient(GradBuilder& g) {
  if (!only_first(g, "its rstd")) return;
  const Operand x = g.operand(0), dy = *g.d_result(0);
  const std::string name = g.d_name(g.wanted(0) ? 0 : 1);
  const Operand h = g.b.make("mul", name + ".normal", {x, g.result(1)});
  if (g.wanted(0)) {
    const Operand scaled = times_factor(g.b, name + ".scaled", dy, g.operand(1), g.op());
    g.add(0, normal_rows_gradient(g.b, name, name, scaled, h, g.result(1), /*centred=*/false));
  }
  if (g.wanted(1)) g.add(1, g.b.make("mul", g.d_name(1) + ".rows", {dy, h}));
}

std::vector<Operand> expand_rms(Builder& b, const Op& op) {
  const std::string name = take_name(b, op, 0), rstd_name = take_name(b, op, 1);
  const Operand x = op.operands[0];
  const double eps = std::get<double>(*find_attr(op, "eps"));
  // The square of a half would be rounded to a half again.
  const bool half = is_narrow(b.type(x).dtype);
  const Operand wide = half ? Operand(b.make("cast", name + ".wide", {x})) : x;
  const Operand squares = b.make("square", name + ".squares", {wide});
  const Operand mean = row_mean(b, name + ".total", name + ".mean_square", squares);
  const Operand shifted = b.make("add", name + ".shifted", {mean, eps});
  const Operand root = b.make("sqrt", name + ".root", {shifted});
  const Operand rstd = b.make("reciprocal", rstd_name, {root});
  const Operand normal = b.make("mul", name + ".normal", {x, rstd});
  return {times_factor(b, name, normal, op.operands[1], op), rstd};
}

void rms_reference(EvalView& view) {
  each_row(view, [&](int64_t r, const double* row, int64_t columns) {
    double mean = 0;
    for (int64_t c = 0; c < columns; ++c) mean += row[c] * row[c] / static_cast<double>(columns);
    const double rstd = 1.0 / std::sqrt(mean + view.op.real("eps"));
    for (int64_t c = 0; c < columns; ++c)
      view.result(0).data[r * columns + c] =
          row[c] * rstd * (view.op.real("offset") + view.operand(1).data[c]);
    view.result(1).data[r] = rstd;
  });
}

}  // namespace

extern const OpInfo op_rms_norm{
    .name = "rms_norm",
    .summary =
        "x * rstd * (offset + weight) over the last axis; rstd = 1 / sqrt(mean(x^2) + eps). Operands: x, "
        "weight; results: y, rstd [..,1]",
    .operands = 2,
    .results = 2,
    .local = true,
    .attrs = {{"eps", 1e-5}, {"offset", 0.0}},
    .infer = infer_rms_norm,
    .gradient = rms_gradient,
    .expand = expand_rms,
    .reference = rms_reference,
    .saves = Saves::operands,
    .precision = Precision::f32,
};

}  // namespace gacc::ir
