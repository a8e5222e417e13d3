// Norms over the last axis, over groups of channels, and over the batch.
#include <algorithm>
#include <cmath>
#include <utility>

#include "frontend/layers.h"
#include "ir/ops/channels.h"

namespace gacc::frontend {

namespace {

struct Affine {
  ir::BufferId weight;
  ir::Operand bias;
};

// weight and bias [size], which start as 1 - offset and 0; without a bias it is the number 0.
Affine affine(LayerContext& l, int64_t size, bool biased = true) {
  l.need_last_axis();
  using enum Parameters::Standard;
  const ir::BufferId weight = l.parameter("weight", {size}, l.keys.integer("offset") == 1 ? zeros : ones);
  if (!biased) return {weight, 0.0};
  return {weight, l.parameter("bias", {size}, Parameters::Standard::zeros)};
}

// The factor of channels, offset + weight; in f32 also where the model is of halves.
ir::Operand channel_factor(LayerContext& l, ir::BufferId weight) {
  if (l.keys.integer("offset") == 0) return weight;
  const bool outer = std::exchange(l.b.keep_f32, true);
  const ir::ValueId factor = l.b.make("add", l.path + ".factor", {weight, 1.0});
  l.b.keep_f32 = outer;
  return factor;
}

// An op over the last axis or over groups of channels, which also gives the mean, if it takes one, and the
// reciprocal deviation.
Layer lower_norm(LayerContext& l, const std::string& op, int64_t size, bool biased) {
  const Affine own = affine(l, size, biased);
  const bool centred = op != "rms_norm";
  std::vector<std::string> names = {l.path, l.path + ".rstd"};
  const bool adds =
      std::ranges::count(ir::find_op(op)->attrs, "offset", &ir::AttrSpec::name) > 0;  // the op itself
  std::vector<ir::Operand> operands = {l.x(), adds ? own.weight : channel_factor(l, own.weight)};
  if (centred) names.insert(names.begin() + 1, l.path + ".mean");
  if (centred) operands.push_back(own.bias);
  ir::Attrs attrs = l.attrs_of(op, adds ? ir::Attrs{{"offset", offset_of(l.keys)}} : ir::Attrs{});
  return {{l.b.make_n(op, std::move(names), std::move(operands), std::move(attrs)).front()}, own.weight};
}

Layer lower_group_norm(LayerContext& l) {
  l.need_last_axis();
  const int64_t channels = l.shape()[1], groups = l.keys.integer("groups");
  l.need_groups(channels, groups);
  return lower_norm(l, "group_norm", channels, true);
}

// In eval, and of a frozen layer in step: by the running statistics.
Layer normal_of_running(LayerContext& l, const Affine& own, ir::BufferId mean, ir::BufferId variance) {
  const auto wide = [&](const char* suffix, const ir::Operand& values) {
    return ir::per_channel(l.b, l.path + suffix, values, l.shape());
  };
  const ir::ValueId shifted = l.b.make("add", l.path + ".shifted", {variance, l.keys.real("eps")});
  const ir::ValueId deviation = l.b.make("sqrt", l.path + ".deviation", {shifted});
  const ir::ValueId rstd = l.b.make("reciprocal", l.path + ".rstd", {deviation});
  const ir::ValueId centred = l.b.make("sub", l.path + ".centred", {l.x(), wide(".mean.wide", mean)});
  const ir::ValueId normal = l.b.make("mul", l.path + ".normal", {centred, wide(".rstd.wide", rstd)});
  const ir::ValueId scaled =
      l.b.make("mul", l.path + ".scaled", {normal, wide(".weight.wide", channel_factor(l, own.weight))});
  return {{l.b.make("add", l.path, {scaled, wide(".bias.wide", own.bias)})}};
}

// In step: by the statistics of the micro-batch; the running ones move in @NAME.change, and update commits them.
// A frozen layer is as in eval, where PyTorch would have it: nothing of it moves.
Layer lower_batch_norm(LayerContext& l) {
  l.need_last_axis();
  const int64_t channels = l.shape()[1];
  const bool measures = l.training() && l.trains();
  if (measures && ir::elements(l.shape(), l.model.micro_batch) / channels < 2)
    throw Refused(l.error(Kind::shape_mismatch, l.keys.type_at,
                          "layer `{}` has one value per channel in a micro-batch of one sample: there is no "
                          "variance",
                          l.spec.name));
  const Affine own = affine(l, channels);
  Parameters& all = l.layers.parameters;
  const ir::BufferId mean = all.statistic(l.path + ".running_mean", channels, 0, l.keys.type_at);
  const ir::BufferId variance = all.statistic(l.path + ".running_var", channels, 1, l.keys.type_at);
  if (!measures) return normal_of_running(l, own, mean, variance);
  const auto results = l.b.make_n(
      "batch_norm", {l.path, l.path + ".mean", l.path + ".rstd", l.path + ".var", l.path + ".count"},
      {l.x(), channel_factor(l, own.weight), own.bias}, {{"eps", l.keys.real("eps")}});
  double momentum = l.keys.real("momentum");
  if (l.keys.text("accumulation") == "compensate")
    momentum = 1 - std::pow(1 - momentum, 1 / static_cast<double>(l.model.accumulate));
  const auto change = [&](ir::BufferId of) { return l.b.module().belonging(of, ir::BufferRole::change); };
  l.b.effect("moving_mean.acc", {change(mean), mean, results[1]}, {{"momentum", momentum}});
  l.b.effect("moving_variance.acc", {change(variance), variance, results[3], results[4]},
             {{"momentum", momentum}});
  if (l.model.accumulate > 1) l.inexact(inexact_batch_norm(l.path, l.keys.type_at));
  return {{results.front()}, own.weight};
}

}  // namespace

Inexact inexact_batch_norm(const std::string& name, const Location& at) {
  return {.name = fmt::format("batch_norm {} takes its statistics per micro-batch", name),
          .at = at,
          .instead = "group_norm is exact: its statistics are those of one sample"};
}

const LayerType layers::batch_norm{
    .schema = {.name = "batch_norm",
               .says =
                   "Each channel less its mean, by its deviation, of the micro-batch; evaluations take "
                   "running statistics. weight, bias, running_mean, running_var [channels]. Frozen, by "
                   "`trainable = false` or by adapters elsewhere, it takes running statistics in training, "
                   "too, and they stay.",
               .keys = {{"momentum", Form::real, 0.1, "the part of a running statistic that is new",
                         fraction},
                        Key{"accumulation", Form::word, "micro",
                            "\"compensate\": momentum 1 - (1 - momentum)^(1 / accumulate), for statistics "
                            "that move once per launch"}
                            .or_one_of({"micro", "compensate"}),
                        norm_eps_key,
                        norm_offset_key}},
    .weight = true,
    .bias = true,
    .lower = lower_batch_norm,
};

const LayerType layers::layer_norm{
    .schema = {.name = "layer_norm",
               .says = "Less the mean, by the deviation, over the last axis; weight and bias [features].",
               .keys = {norm_eps_key, norm_offset_key, bias_key}},
    .weight = true,
    .bias = true,
    .lower =
        [](LayerContext& l) { return lower_norm(l, "layer_norm", l.shape().back(), l.keys.flag("bias")); },
};

const LayerType layers::rms_norm{
    .schema = {.name = "rms_norm",
               .says = "By the root of the mean square, over the last axis; weight [features].",
               .keys = {norm_eps_key, norm_offset_key}},
    .weight = true,
    .lower = [](LayerContext& l) { return lower_norm(l, "rms_norm", l.shape().back(), false); },
};

const LayerType layers::group_norm{
    .schema = {.name = "group_norm",
               .says = "Less the mean, by the deviation, of a group of channels of one sample; weight and "
                       "bias [channels].",
               .keys = {{"groups", Form::integer, required, "divides the channels", extent},
                        norm_eps_key,
                        norm_offset_key},
               .example = "groups = 2"},
    .weight = true,
    .bias = true,
    .lower = lower_group_norm,
};

}  // namespace gacc::frontend
