// Normalisation of channels: batch_norm over a channel of the whole micro-batch, group_norm over groups of
// channels of one sample; and the running statistics that go with the first.
#include <cmath>

#include "ir/ops/channels.h"

namespace gacc::ir {

namespace {

// --- batch_norm: operands x [B,C,..], weight [C], bias [C]; results y, mean, rstd, variance, the last
// three [C], and the count of elements of a channel [C]

Types infer_batch_norm(const OpView& op) {
  expect_channels(op, 0);
  expect_per_channel(op, 1, 2);
  const Type x = op.operand(0);
  const Type channel{DType::f32, {x.shape[1]}};
  return {{DType::f32, x.shape}, channel, channel, channel, channel};
}

// The mean over [B,C,S] is that of the samples' sums: B is known only at launch, so it is counted. Mean and
// variance are corrected as in normal_rows.
std::vector<Operand> expand_batch_norm(Builder& b, const Op& op) {
  const std::vector<std::string> names = take_names(b, op);
  const std::string& name = names[0];
  const Operand x = op.operands[0];
  const Shape shape = b.type(x).shape;
  const int64_t size = channel_elements(shape);
  const double eps = std::get<double>(*find_attr(op, "eps"));
  const Operand flat = flat_channels(b, name + ".flat", x);
  const Shape flat_shape = b.type(flat).shape;
  Operand counted = 0.0;  // has a row for every sample; those of the sum, so that both share a kernel
  const Operand sum = channel_sum(b, name + ".sum", flat, &counted);
  const Operand ones = b.make("ones_like", name + ".ones", {counted});
  const Operand samples = b.make("column_sum", name + ".samples", {ones});
  const Operand real = b.make("cast", size == 1 ? names[4] : name + ".samples.real", {samples});
  const Operand count =
      size == 1 ? real : Operand(b.make("mul", names[4], {real, static_cast<double>(size)}));
  const Operand rough = b.make("div", name + ".rough", {sum, count});
  const Operand near =
      b.make("sub", name + ".near", {flat, per_channel(b, name + ".rough.flat", rough, flat_shape)});
  const Operand off = b.make("div", name + ".off", {channel_sum(b, name + ".near.sum", near), count});
  const Operand squares = b.make("square", name + ".squares", {near});
  const Operand around = b.make("div", name + ".around", {channel_sum(b, name + ".total", squares), count});
  const Operand mean = b.make("add", names[1], {rough, off});
  const Operand variance = corrected_variance(b, name, names[3], around, off);
  const Operand shifted = b.make("add", name + ".shifted", {variance, eps});
  const Operand deviation = b.make("sqrt", name + ".deviation", {shifted});
  const Operand rstd = b.make("reciprocal", names[2], {deviation});
  const auto wide = [&](const char* suffix, const Operand& values) {
    return per_channel(b, name + suffix, values, shape);
  };
  const Operand deviations = b.make("sub", name + ".deviations", {x, wide(".mean.wide", mean)});
  const Operand normal = b.make("mul", name + ".normal", {deviations, wide(".rstd.wide", rstd)});
  const Operand scaled = b.make("mul", name + ".scaled", {normal, wide(".weight.wide", op.operands[1])});
  return {b.make("add", name, {scaled, wide(".bias.wide", op.operands[2])}), mean, rstd, variance, count};
}

// With h = (x - mean) * rstd and n elements of a channel, sums taken over the channel:
//   d_x = weight * rstd * (dy - sum(dy) / n - h * sum(dy * h) / n)
//   d_weight = sum(dy * h)    d_bias = sum(dy)
void batch_norm_gradient(GradBuilder& g) {
  if (!only_first(g, "its statistics")) return;
  Builder& b = g.b;
  const Operand x = g.operand(0), dy = *g.d_result(0), mean = g.result(1), rstd = g.result(2),
                count = g.result(4);
  const Shape shape = b.type(x).shape;
  const std::string name = "d." + b.name(g.op().results[0]);
  const Operand dy_flat = flat_channels(b, name + ".flat", dy);
  const Operand x_flat = flat_channels(b, name + ".x", x);
  const Shape flat = b.type(x_flat).shape;
  const Operand centred =
      b.make("sub", name + ".centred", {x_flat, per_channel(b, name + ".mean", mean, flat)});
  const Operand h = b.make("mul", name + ".normal", {centred, per_channel(b, name + ".rstd", rstd, flat)});
  const Operand product = b.make("mul", name + ".product", {dy_flat, h});
  const Operand d_weight = channel_sum(b, name + ".dot", product);
  const Operand d_bias = channel_sum(b, name + ".sum", dy_flat);
  if (g.wanted(0)) {
    const auto wide = [&](const char* suffix, const Operand& values) {
      return per_channel(b, name + suffix, values, shape);
    };
    const Operand along = b.make("div", name + ".along", {d_weight, count});
    const Operand level = b.make("div", name + ".level", {d_bias, count});
    const Operand slope = b.make("mul", name + ".slope", {rstd, g.operand(1)});
    const Operand deviations = b.make("sub", name + ".deviations", {x, wide(".mean.wide", mean)});
    const Operand normal = b.make("mul", name + ".h", {deviations, wide(".rstd.wide", rstd)});
    const Operand first = b.make("sub", name + ".first", {dy, wide(".level.wide", level)});
    const Operand second = b.make("mul", name + ".second", {normal, wide(".along.wide", along)});
    const Operand inner = b.make("sub", name + ".inner", {first, second});
    g.add(0, b.make("mul", g.d_name(0), {inner, wide(".slope.wide", slope)}));
  }
  if (g.wanted(1)) g.add(1, d_weight);
  if (g.wanted(2)) g.add(2, d_bias);
}

void batch_norm_reference(EvalView& view) {
  const Tensor& x = view.operand(0);
  const int64_t samples = x.shape[0], channels = x.shape[1], size = channel_elements(x.shape);
  const double eps = view.op.real("eps"), count = static_cast<double>(samples * size);
  for (int64_t c = 0; c < channels; ++c) {
    const auto each = [&](auto&& f) {
      for (int64_t b = 0; b < samples; ++b)
        for (int64_t s = 0; s < size; ++s) f(static_cast<size_t>((b * channels + c) * size + s));
    };
    double mean = 0, variance = 0;
    each([&](size_t i) { mean += x.data[i] / count; });
    each([&](size_t i) { variance += (x.data[i] - mean) * (x.data[i] - mean) / count; });
    const double rstd = 1 / std::sqrt(variance + eps);
    const auto k = static_cast<size_t>(c);
    each([&](size_t i) {
      view.result(0).data[i] = (x.data[i] - mean) * rstd * view.operand(1).data[k] + view.operand(2).data[k];
    });
    view.result(1).data[k] = mean;
    view.result(2).data[k] = rstd;
    view.result(3).data[k] = variance;
    view.result(4).data[k] = count;
  }
}

// --- group_norm: operands x [B,C,..], weight [C], bias [C]; results y, mean, rstd, the last two [B,G,1]

Shape group_shape(const Shape& x, int64_t groups) {
  return {x[0], groups, x[1] / groups * channel_elements(x)};
}

Types infer_group_norm(const OpView& op) {
  expect_channels(op, 0);
  expect_per_channel(op, 1, 2);
  const Type x = op.operand(0);
  const int64_t groups = op.integer("groups");
  if (groups < 1 || x.shape[1] % groups != 0)
    refuse(op, Kind::shape_mismatch, "{} channels do not divide into {} groups", x.shape[1], groups);
  const Type group{DType::f32, {x.shape[0], groups, 1}};
  return {{DType::f32, x.shape}, group, group};
}

std::vector<Operand> expand_group_norm(Builder& b, const Op& op) {
  const std::vector<std::string> names = take_names(b, op);
  const std::string& name = names[0];
  const Shape shape = b.type(op.operands[0]).shape;
  const Shape group = group_shape(shape, std::get<int64_t>(*find_attr(op, "groups")));
  const double eps = std::get<double>(*find_attr(op, "eps"));
  const Operand x = b.reshaped(name + ".groups", op.operands[0], group);
  const NormalRows rows = normal_rows(b, name, names[1], names[2], x, eps);
  const Operand images = b.reshaped(name + ".images", rows.normal, shape);
  const Operand weight = per_channel(b, name + ".weight.wide", op.operands[1], shape);
  const Operand bias = per_channel(b, name + ".bias.wide", op.operands[2], shape);
  const Operand scaled = b.make("mul", name + ".scaled", {images, weight});
  return {b.make("add", name, {scaled, bias}), rows.mean, rows.rstd};
}

// With h = (x - mean) * rstd and k = dy * weight, means taken over the group:
//   d_x = rstd * (k - mean(k) - h * mean(k * h))    d_weight = sum(dy * h), d_bias = sum(dy) over the channel
void group_norm_gradient(GradBuilder& g) {
  if (!only_first(g, "its mean and rstd")) return;
  Builder& b = g.b;
  const Operand x = g.operand(0), dy = *g.d_result(0);
  const Shape shape = b.type(x).shape, group = group_shape(shape, g.view().integer("groups"));
  const std::string name = "d." + b.name(g.op().results[0]);
  const Operand grouped = b.reshaped(name + ".x", x, group);
  const Operand centred = b.make("sub", name + ".centred", {grouped, g.result(1)});
  const Operand h = b.make("mul", name + ".normal", {centred, g.result(2)});
  if (g.wanted(0)) {
    const Operand wide = per_channel(b, name + ".weight.wide", g.operand(1), shape);
    const Operand scaled = b.make("mul", name + ".scaled", {dy, wide});
    const Operand k = b.reshaped(name + ".groups", scaled, group);
    const std::string dx = group == shape ? g.d_name(0) : name + ".dx";
    g.add(0, b.reshaped(g.d_name(0), normal_rows_gradient(b, name, dx, k, h, g.result(2)), shape));
  }
  if (g.wanted(1)) {
    const Operand normal = flat_channels(b, name + ".h", b.reshaped(name + ".h.images", h, shape));
    const Operand dy_flat = flat_channels(b, name + ".flat", dy);
    g.add(1, channel_sum(b, name + ".weight.sum", b.make("mul", name + ".weight.rows", {dy_flat, normal})));
  }
  if (g.wanted(2)) g.add(2, channel_sum(b, name + ".bias.sum", flat_channels(b, name + ".bias.flat", dy)));
}

void group_norm_reference(EvalView& view) {
  const Tensor& x = view.operand(0);
  const int64_t groups = view.op.integer("groups"), channels = x.shape[1], size = channel_elements(x.shape);
  const int64_t within = channels / groups * size;
  const double eps = view.op.real("eps");
  for (int64_t r = 0; r < x.shape[0] * groups; ++r) {
    const double* row = x.data.data() + r * within;
    const auto [mean, rstd] = row_statistics(row, within, eps);
    for (int64_t i = 0; i < within; ++i) {
      const auto c = static_cast<size_t>((r % groups * within + i) / size);
      view.result(0).data[r * within + i] =
          (row[i] - mean) * rstd * view.operand(1).data[c] + view.operand(2).data[c];
    }
    view.result(1).data[r] = mean;
    view.result(2).data[r] = rstd;
  }
}

}  // namespace

extern const OpInfo op_batch_norm{
    .name = "batch_norm",
    .summary =
        "(x - mean) * rstd * weight + bias with the statistics of every channel of the micro-batch; x "
        "[B,C,..]; rstd = 1 / sqrt(biased variance + eps). Operands: x, weight, bias; results: y, and [C] "
        "each: mean, rstd, variance, count of elements",
    .operands = 3,
    .results = 5,
    .attrs = {{"eps", 1e-5}},
    .infer = infer_batch_norm,
    .gradient = batch_norm_gradient,
    .expand = expand_batch_norm,
    .reference = batch_norm_reference,
    .saves = Saves::operands,
    .precision = Precision::f32,
};

extern const OpInfo op_group_norm{
    .name = "group_norm",
    .summary =
        "(x - mean) * rstd * weight + bias with the statistics of groups of channels of one sample; x "
        "[B,C,..], weight and bias [C]. Operands: x, weight, bias; results: y, mean, rstd, the last two "
        "[B,groups,1]",
    .operands = 3,
    .results = 3,
    .attrs = {{"eps", 1e-5}, {"groups", int64_t{1}}},
    .infer = infer_group_norm,
    .gradient = group_norm_gradient,
    .expand = expand_group_norm,
    .reference = group_norm_reference,
    .saves = Saves::operands,
    .precision = Precision::f32,
};

namespace {

// s <- (1 - m) s + m x, for the statistic s = statistic + change, which so moves with every micro-batch of a
// window while the statistic itself waits for the update:
//   change += m (x - (statistic + change))
// Where x is a biased variance of n elements, operand 3, it is taken as the unbiased x n / (n - 1); of one element
// alone it is taken as it is.
template <bool variance>
OpInfo moving(std::string_view name, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .operands = variance ? 4 : 3,
          .writes = operand_bits({0}),
          .attrs = {{"momentum", 0.1}},
          .infer = infer_write,
          .formula =
              [](const FormulaView& view) {
                const Scalar change = view.operand(0);
                Scalar x = view.operand(2);
                if (variance) x = x * (view.operand(3) / max(view.operand(3) - 1, 1));
                view.result(change + view.op.real("momentum") * (x - (view.operand(1) + change)));
              },
          .precision = Precision::f32,
          .accumulates = true};
}

}  // namespace

extern const OpInfo op_moving_mean_acc = moving<false>(
    "moving_mean.acc",
    "change += momentum * (x - (statistic + change)): a running statistic that moves with every "
    "micro-batch and is committed by the update. Operands: change (written), statistic, x");

extern const OpInfo op_moving_variance_acc = moving<true>(
    "moving_variance.acc",
    "moving_mean.acc of the unbiased variance x * n / (n - 1), n at least 2. Operands: change (written), "
    "statistic, biased variance x, count n");

}  // namespace gacc::ir
