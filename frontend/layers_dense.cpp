// Layers on the last axis: linear, layer_norm, rms_norm; activations; add and mul of several inputs.
#include "frontend/layers.h"

namespace gacc::frontend {

// y = x @ weight^T + bias over the last axis; then the activation. weight [out, in], bias [out]
LayerLowering::Layer LayerLowering::linear(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!has_last_axis(spec, x)) return {};
  const int64_t in = type(x).shape.back(), out = spec.features;
  const std::string path = scope.prefix + spec.name;
  const bool trainable = scope.trainable && spec.trainable;
  std::optional<ir::BufferId> weight;
  if (spec.tied) {
    weight = tied_weight(spec, scope);
    if (!weight) return {};
    const ir::Shape owned = b_.module()[*weight].type.shape;
    if (owned != ir::Shape{out, in}) {
      const Location owner = b_.module()[*weight].at;
      if (owned.size() == 2 && owned.front() == out) {
        diag_
            .error(Kind::shape_mismatch, spec.tied->at, "layer `{}` takes {} inputs, {} gives {}", spec.name,
                   owned.back(), x.label, in)
            .note(owner, fmt::format("the weight of `{}`, {}, is defined here", spec.tied->name,
                                     ir::shape_text(owned)));
      } else {
        diag_
            .error(Kind::shape_mismatch, spec.tied->at, "layer `{}` needs a weight [{},{}], `{}` has {}",
                   spec.name, out, in, spec.tied->name, ir::shape_text(owned))
            .note(owner, "that weight is defined here");
      }
      return {};
    }
  } else {
    weight = parameters_.get(path + ".weight", {out, in}, spec.init, Parameters::Standard::spread, {in, out},
                             trainable, spec.features_at);
    if (!weight) return {};
  }
  std::optional<ir::BufferId> bias;
  if (spec.bias) {
    bias = parameters_.get(path + ".bias", {out}, spec.bias_init, Parameters::Standard::spread, {in, out},
                           trainable, spec.features_at);
    if (!bias) return {};
  }
  const bool active = !spec.activation.empty();
  ir::ValueId y =
      b_.make("matmul", bias || active ? path + ".mm" : path, {*x.value, *weight}, {{"tb", true}});
  if (bias) y = b_.make("add", active ? path + ".pre" : path, {y, *bias});
  if (active) y = activation(spec, path, y);
  return {.output = {.value = y}, .weight = weight};
}

LayerLowering::Layer LayerLowering::layer_norm(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!has_last_axis(spec, x)) return {};
  const int64_t width = type(x).shape.back();
  const std::string path = scope.prefix + spec.name;
  const bool trainable = scope.trainable && spec.trainable;
  const auto weight = parameters_.get(path + ".weight", {width}, spec.init, Parameters::Standard::ones, {},
                                      trainable, spec.type_at);
  const auto bias = parameters_.get(path + ".bias", {width}, spec.bias_init, Parameters::Standard::zeros, {},
                                    trainable, spec.type_at);
  if (!weight || !bias) return {};
  const auto results = b_.make_n("layer_norm", {path, path + ".mean", path + ".rstd"},
                                 {*x.value, *weight, *bias}, {{"eps", spec.eps}});
  return {.output = {.value = results.front()}, .weight = weight};
}

LayerLowering::Layer LayerLowering::rms_norm(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  if (!has_last_axis(spec, x)) return {};
  const std::string path = scope.prefix + spec.name;
  const auto weight =
      parameters_.get(path + ".weight", {type(x).shape.back()}, spec.init, Parameters::Standard::ones, {},
                      scope.trainable && spec.trainable, spec.type_at);
  if (!weight) return {};
  const auto results =
      b_.make_n("rms_norm", {path, path + ".rstd"}, {*x.value, *weight}, {{"eps", spec.eps}});
  return {.output = {.value = results.front()}, .weight = weight};
}

ir::ValueId LayerLowering::activation(const LayerSpec& spec, const std::string& name, ir::ValueId x) {
  ir::Attrs attrs;
  if (spec.activation == "leaky_relu") attrs["slope"] = spec.slope;
  return b_.make(spec.activation, name, {x}, std::move(attrs));
}

// add and mul of two inputs or more, from left to right.
Flow LayerLowering::elementwise(const LayerSpec& spec, const std::vector<Flow>& inputs, const Scope& scope) {
  const std::string path = scope.prefix + spec.name;
  ir::ValueId y = *inputs.front().value;
  ir::Shape shape = type(inputs.front()).shape;
  for (size_t i = 1; i < inputs.size(); ++i) {
    const std::optional<ir::Shape> both = ir::broadcast(shape, type(inputs[i]).shape);
    if (!both || !ir::has_batch(*both)) {
      const Location at = i < spec.inputs.size() ? spec.inputs[i].at : spec.type_at;
      diag_
          .error(Kind::shape_mismatch, at, "layer `{}` cannot {} {} {} and {} {}", spec.name,
                 spec.kind == LayerKind::add ? "add" : "multiply", inputs[0].label, shape_of(inputs[0]),
                 inputs[i].label, shape_of(inputs[i]))
          .note(inputs[0].at, inputs[0].defined_here())
          .note(inputs[i].at, inputs[i].defined_here());
      return wrong();
    }
    shape = *both;
    const bool last = i + 1 == inputs.size();
    y = b_.make(spec.type, last ? path : fmt::format("{}.part{}", path, i), {y, *inputs[i].value});
  }
  return {.value = y};
}

}  // namespace gacc::frontend
