// Layers of images [C,H,W]: convolution, pooling, and the norms over channels.
#include <cmath>

#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// [C] as [C,1,..]: it meets every element of its channel in `shape`, which has B first.
ir::Operand per_channel(ir::Builder& b, const std::string& name, const ir::Operand& values,
                        const ir::Shape& shape) {
  if (shape.size() == 2) return values;
  ir::Shape wide(shape.size() - 1, 1);
  wide[0] = shape[1];
  return b.make("reshape", name, {values}, {{"shape", wide}});
}

std::vector<int64_t> pair(const int64_t (&two)[2]) { return {two[0], two[1]}; }

}  // namespace

bool LayerLowering::is_image(const LayerSpec& spec, const Flow& x) const {
  if (type(x).shape.size() == 4) return true;
  diag_
      .error(Kind::shape_mismatch, spec.type_at, "layer `{}` takes images [C,H,W], {} gives {}", spec.name,
             x.label, shape_of(x))
      .note(x.at, x.defined_here());
  return false;
}

// Whether a window with this reach and padding has a place in the image.
bool LayerLowering::window_fits(const LayerSpec& spec, const Flow& x) const {
  const ir::Shape& shape = type(x).shape;
  const WindowSpec& w = spec.window;
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t reach = w.dilation[axis] * (w.kernel[axis] - 1) + 1;
    if (w.same || reach <= shape[axis + 2] + 2 * w.padding[axis]) continue;
    diag_
        .error(Kind::shape_mismatch, w.kernel_at,
               "the kernel of layer `{}` reaches over {} elements, {} gives {} with padding {}", spec.name,
               reach, x.label, shape_of(x), w.padding[axis])
        .note(x.at, x.defined_here());
    return false;
  }
  return true;
}

// y = conv(x, weight) + bias; then the activation. weight [out, in/groups, kh, kw], bias [out]
LayerLowering::Layer LayerLowering::conv2d(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!is_image(spec, x) || !window_fits(spec, x)) return {};
  const WindowSpec& w = spec.window;
  const int64_t in = type(x).shape[1], out = w.channels;
  if (in % w.groups != 0) {
    diag_
        .error(Kind::shape_mismatch, w.groups_at,
               "layer `{}`: {} input channels do not divide into {} groups", spec.name, in, w.groups)
        .note(x.at, x.defined_here());
    return {};
  }
  std::vector<int64_t> padding = {w.padding[0], w.padding[1], w.padding[0], w.padding[1]};
  for (size_t axis = 0; w.same && axis < 2; ++axis) {  // an odd rest goes to the end, as in PyTorch
    const int64_t all = w.dilation[axis] * (w.kernel[axis] - 1);
    padding[axis] = all / 2;
    padding[axis + 2] = all - all / 2;
  }
  const std::string path = scope.prefix + spec.name;
  const bool trainable = scope.trainable && spec.trainable;
  const int64_t taps = w.kernel[0] * w.kernel[1];
  const Fan fan{in / w.groups * taps, out * taps};
  const auto weight = parameters_.get(path + ".weight", {out, in / w.groups, w.kernel[0], w.kernel[1]},
                                      spec.init, Parameters::Standard::spread, fan, trainable, w.channels_at);
  if (!weight) return {};
  std::optional<ir::BufferId> bias;
  if (spec.bias) {
    bias = parameters_.get(path + ".bias", {out}, spec.bias_init, Parameters::Standard::spread, fan,
                           trainable, w.channels_at);
    if (!bias) return {};
  }
  const bool active = !spec.activation.empty();
  ir::ValueId y = b_.make("conv2d", bias || active ? path + ".conv" : path, {*x.value, *weight},
                          {{"kernel", pair(w.kernel)},
                           {"stride", pair(w.stride)},
                           {"padding", padding},
                           {"dilation", pair(w.dilation)},
                           {"groups", w.groups}});
  if (bias) {
    const ir::Shape shape = b_.type(y).shape;
    y = b_.make("add", active ? path + ".pre" : path,
                {y, per_channel(b_, path + ".bias.wide", *bias, shape)});
  }
  if (active) y = activation(spec, path, y);
  return {.output = {.value = y}, .weight = weight};
}

Flow LayerLowering::pool(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!is_image(spec, x) || !window_fits(spec, x)) return wrong();
  const WindowSpec& w = spec.window;
  return {.value = b_.make(
              spec.type, scope.prefix + spec.name, {*x.value},
              {{"kernel", pair(w.kernel)},
               {"stride", pair(w.stride)},
               {"padding", std::vector<int64_t>{w.padding[0], w.padding[1], w.padding[0], w.padding[1]}}})};
}

// The mean of every channel: [C,H,W] -> [C]
Flow LayerLowering::global_pool(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!is_image(spec, x)) return wrong();
  const std::string path = scope.prefix + spec.name;
  const ir::Shape shape = type(x).shape;
  const int64_t size = shape[2] * shape[3];
  const ir::ValueId flat =
      b_.make("reshape", path + ".flat", {*x.value}, {{"shape", ir::Shape{shape[0], shape[1], size}}});
  const ir::ValueId sum = b_.make("row_sum", path + ".sum", {flat});
  const ir::ValueId mean = b_.make("mul", path + ".mean", {sum, 1.0 / static_cast<double>(size)});
  return {.value = b_.make("reshape", path, {mean}, {{"shape", ir::Shape{shape[0], shape[1]}}})};
}

std::optional<LayerLowering::Affine> LayerLowering::affine(const LayerSpec& spec, const Flow& x,
                                                           const Scope& scope) {
  const int64_t channels = type(x).shape[1];
  const std::string path = scope.prefix + spec.name;
  const bool trainable = scope.trainable && spec.trainable;
  const auto weight = parameters_.get(path + ".weight", {channels}, spec.init, Parameters::Standard::ones, {},
                                      trainable, spec.type_at);
  const auto bias = parameters_.get(path + ".bias", {channels}, spec.bias_init, Parameters::Standard::zeros,
                                    {}, trainable, spec.type_at);
  if (!weight || !bias) return std::nullopt;
  return Affine{*weight, *bias};
}

// In step: the statistics of the micro-batch; the running ones move in @NAME.change, and update commits them.
// In eval: the running statistics.
LayerLowering::Layer LayerLowering::batch_norm(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!has_last_axis(spec, x)) return {};
  const ir::Shape shape = type(x).shape;
  const bool training = b_.region().kind == ir::RegionKind::step;
  if (training && ir::elements(shape, model_.micro_batch) / shape[1] < 2) {
    diag_.error(Kind::shape_mismatch, spec.type_at,
                "layer `{}` has one value per channel in a micro-batch of one sample: there is no variance",
                spec.name);
    return {};
  }
  const std::optional<Affine> own = affine(spec, x, scope);
  if (!own) return {};
  const std::string path = scope.prefix + spec.name;
  const ir::BufferId mean = parameters_.statistic(path + ".running_mean", shape[1], 0, spec.type_at);
  const ir::BufferId variance = parameters_.statistic(path + ".running_var", shape[1], 1, spec.type_at);
  const auto wide = [&](const char* suffix, const ir::Operand& values) {
    return per_channel(b_, path + suffix, values, shape);
  };
  if (!training) {
    const ir::ValueId shifted = b_.make("add", path + ".shifted", {variance, spec.eps});
    const ir::ValueId deviation = b_.make("sqrt", path + ".deviation", {shifted});
    const ir::ValueId rstd = b_.make("reciprocal", path + ".rstd", {deviation});
    const ir::ValueId centred = b_.make("sub", path + ".centred", {*x.value, wide(".mean.wide", mean)});
    const ir::ValueId normal = b_.make("mul", path + ".normal", {centred, wide(".rstd.wide", rstd)});
    const ir::ValueId scaled = b_.make("mul", path + ".scaled", {normal, wide(".weight.wide", own->weight)});
    return {.output = {.value = b_.make("add", path, {scaled, wide(".bias.wide", own->bias)})}};
  }
  const auto results =
      b_.make_n("batch_norm", {path, path + ".mean", path + ".rstd", path + ".var", path + ".count"},
                {*x.value, own->weight, own->bias}, {{"eps", spec.eps}});
  double momentum = spec.momentum;
  if (spec.compensate) momentum = 1 - std::pow(1 - momentum, 1 / static_cast<double>(model_.accumulate));
  const auto change = [&](ir::BufferId statistic) { return parameters_.change_of(statistic); };
  b_.effect("moving_mean.acc", {change(mean), mean, results[1]}, {{"momentum", momentum}});
  b_.effect("moving_variance.acc", {change(variance), variance, results[3], results[4]},
            {{"momentum", momentum}});
  if (model_.accumulate > 1) {
    inexact_.push_back({.name = fmt::format("batch_norm {} takes its statistics per micro-batch", path),
                        .at = spec.type_at,
                        .instead = "group_norm is exact: its statistics are those of one sample"});
  }
  return {.output = {.value = results.front()}, .weight = own->weight};
}

LayerLowering::Layer LayerLowering::group_norm(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!has_last_axis(spec, x)) return {};
  const int64_t channels = type(x).shape[1];
  if (channels % spec.window.groups != 0) {
    diag_
        .error(Kind::shape_mismatch, spec.window.groups_at,
               "layer `{}`: {} channels do not divide into {} groups", spec.name, channels,
               spec.window.groups)
        .note(x.at, x.defined_here());
    return {};
  }
  const std::optional<Affine> own = affine(spec, x, scope);
  if (!own) return {};
  const std::string path = scope.prefix + spec.name;
  const auto results =
      b_.make_n("group_norm", {path, path + ".mean", path + ".rstd"}, {*x.value, own->weight, own->bias},
                {{"groups", spec.window.groups}, {"eps", spec.eps}});
  return {.output = {.value = results.front()}, .weight = own->weight};
}

}  // namespace gacc::frontend
