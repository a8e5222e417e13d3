// One function per kind of layer; names and scopes are at the end.
#include "frontend/layers.h"

#include <algorithm>
#include <cmath>

namespace gacc::frontend {

namespace {

constexpr int64_t kMaxLayers = 4096;  // with all repeats written out

// The units of recompute: layers, and copies of repeated blocks.
double count_units(const std::vector<LayerSpec>& specs) {
  double units = 0;
  for (const LayerSpec& spec : specs) {
    if (spec.kind != LayerKind::sequential)
      units += 1;
    else
      units += spec.repeat ? static_cast<double>(*spec.repeat) : count_units(spec.layers);
  }
  return units;
}

ir::Shape with_batch(const ir::Shape& per_sample) {
  ir::Shape shape{ir::kBatch};
  shape.insert(shape.end(), per_sample.begin(), per_sample.end());
  return shape;
}

}  // namespace

LayerLowering::LayerLowering(ir::Builder& builder, Parameters& parameters, const ModelFile& model)
    : b_(builder), parameters_(parameters), model_(model), diag_(builder.diag()) {}

Flow LayerLowering::run() {
  Flow first;
  for (const InputSpec& input : model_.inputs) {
    Flow flow{.label = fmt::format("input `{}`", input.name), .at = input.at};
    const ir::Shape shape = with_batch(input.shape);
    if (input.sound && !ir::fits(shape, model_.micro_batch)) {
      diag_.error(Kind::out_of_range, input.at, "a micro-batch of input `{}` has too many elements",
                  input.name);
    } else if (input.sound) {
      flow.value = b_.region().add_value(input.name, {input.dtype, shape});
      b_.region().inputs.push_back(*flow.value);
    }
    if (inputs_.empty()) first = flow;
    inputs_.emplace(input.name, std::move(flow));
  }
  if (model_.recompute_policy == "sqrt") {  // about as many segments as each has units
    const double units = std::min(count_units(model_.layers), static_cast<double>(kMaxLayers));
    units_per_segment_ = std::max(1, static_cast<int32_t>(std::ceil(units / std::ceil(std::sqrt(units)))));
  }
  return list(model_.layers, first, top_);
}

Flow LayerLowering::list(const std::vector<LayerSpec>& specs, Flow x, Scope& scope) {
  scope.specs = &specs;
  const bool full = b_.full;
  for (const LayerSpec& spec : specs) {
    std::vector<Flow> inputs;
    for (const Named& name : spec.inputs) inputs.push_back(resolve(name, scope));
    if (inputs.empty()) inputs.push_back(std::move(x));
    if (++lowered_ > kMaxLayers) {
      if (!too_many_)
        diag_.error(Kind::out_of_range, spec.type_at, "the model has more than {} layers, repeats counted",
                    kMaxLayers);
      too_many_ = true;
      return wrong();
    }
    b_.location = spec.type_at;
    b_.full = scope.full || spec.full;
    const int32_t outer = b_.segment;
    if (spec.kind != LayerKind::sequential) b_.segment = segment_for(spec);
    Layer layer = lower(spec, std::move(inputs), scope);
    b_.segment = outer;
    b_.full = full;
    layer.output.label = fmt::format("`{}`", spec.name);
    layer.output.at = spec.name_at;
    if (layer.output.value && !within_limits(spec, layer.output)) layer.output.value.reset();
    x = layer.output;
    scope.layers.insert_or_assign(spec.name, std::move(layer));
  }
  return x;
}

LayerLowering::Layer LayerLowering::lower(const LayerSpec& spec, std::vector<Flow> inputs,
                                          const Scope& scope) {
  // Blocks are entered even when their input is wrong: what is in them is checked as far as it can be.
  if (spec.kind == LayerKind::sequential) return {.output = sequential(spec, inputs.front(), scope)};
  if (spec.kind == LayerKind::residual) return {.output = residual(spec, inputs.front(), scope)};
  if (!spec.sound) return {};
  const bool known =
      std::all_of(inputs.begin(), inputs.end(), [](const Flow& input) { return input.value.has_value(); });
  const Flow& x = inputs.front();
  if (!known) return {};
  if (spec.kind == LayerKind::embedding) return embedding(spec, x, scope);
  for (const Flow& input : inputs) {
    if (!takes_floats(spec, input)) return {};
  }
  const std::string name = scope.prefix + spec.name;
  switch (spec.kind) {
    case LayerKind::linear:
      return linear(spec, x, scope);
    case LayerKind::layer_norm:
      return layer_norm(spec, x, scope);
    case LayerKind::attention:
      return attention(spec, x, scope);
    case LayerKind::rms_norm:
      return rms_norm(spec, x, scope);
    case LayerKind::position_embedding:
      return position_embedding(spec, x, scope);
    case LayerKind::conv2d:
      return conv2d(spec, x, scope);
    case LayerKind::pool2d:
      return {.output = pool(spec, x, scope)};
    case LayerKind::global_avg_pool2d:
      return {.output = global_pool(spec, x, scope)};
    case LayerKind::batch_norm:
      return batch_norm(spec, x, scope);
    case LayerKind::group_norm:
      return group_norm(spec, x, scope);
    case LayerKind::activation:
      return {.output = {.value = activation(spec, name, *x.value)}};
    case LayerKind::softmax:
    case LayerKind::log_softmax:
      if (!has_last_axis(spec, x)) return {};
      return {.output = {.value = b_.make(spec.type, name, {*x.value})}};
    case LayerKind::flatten:
    case LayerKind::reshape:
      return {.output = reshape(spec, x, scope)};
    case LayerKind::permute:
      return {.output = permute(spec, x, scope)};
    case LayerKind::concat:
      return {.output = concat(spec, inputs, scope)};
    case LayerKind::dropout:
      return {.output = dropout(spec, x, scope)};
    case LayerKind::add:
    case LayerKind::mul:
      return {.output = elementwise(spec, inputs, scope)};
    default:
      return {};
  }
}

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

// flatten is the reshape to one axis.
Flow LayerLowering::reshape(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  const ir::Shape& from = type(x).shape;
  const int64_t count = ir::elements(from, 1);
  const bool flatten = spec.kind == LayerKind::flatten;
  const ir::Shape to = with_batch(flatten ? ir::Shape{count} : spec.shape);
  if (!ir::fits(to, 1) || ir::elements(to, 1) != count) {
    diag_
        .error(Kind::shape_mismatch, spec.shape_at,
               "layer `{}` reshapes to {}, {} gives {}, which has {} elements", spec.name,
               ir::shape_text(spec.shape), x.label, shape_of(x), count)
        .note(x.at, x.defined_here());
    return wrong();
  }
  if (to == from) return x;
  return {.value = b_.make("reshape", scope.prefix + spec.name, {*x.value}, {{"shape", to}})};
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

Flow LayerLowering::sequential(const LayerSpec& spec, Flow x, const Scope& scope) {
  const int64_t copies = spec.repeat.value_or(1);
  const int32_t outer = b_.segment;
  for (int64_t i = 0; i < copies; ++i) {
    // Under the other policies the layers of a block that is not repeated are units themselves.
    b_.segment = outer;
    if (spec.repeat || model_.recompute_policy == "marked") b_.segment = segment_for(spec);
    Scope inner{.parent = &scope,
                .prefix = scope.prefix + spec.name + ".",
                .trainable = scope.trainable && spec.trainable,
                .full = scope.full || spec.full};
    if (spec.repeat) inner.prefix += fmt::format("{}.", i);
    const size_t before = diag_.reports().size();
    x = list(spec.layers, std::move(x), inner);
    if (diag_.reports().size() != before || (!x.value && i > 0))
      return wrong();  // other copies would say the same again
  }
  return x;
}

Flow LayerLowering::residual(const LayerSpec& spec, const Flow& x, const Scope& scope) {
  Scope inner{.parent = &scope,
              .prefix = scope.prefix + spec.name + ".",
              .trainable = scope.trainable && spec.trainable,
              .full = scope.full || spec.full};
  const Flow y = list(spec.layers, x, inner);
  if (!x.value || !y.value || !takes_floats(spec, x)) return wrong();
  if (type(x).shape != type(y).shape) {
    diag_
        .error(Kind::shape_mismatch, spec.type_at,
               "residual `{}` adds its input to its body's output: {} gives {}, {} gives {}", spec.name,
               x.label, shape_of(x), y.label, shape_of(y))
        .note(y.at, fmt::format("the body ends in {}", y.label));
    return wrong();
  }
  b_.location = spec.type_at;
  return {.value = b_.make("add", scope.prefix + spec.name, {*x.value, *y.value})};
}

// --- recompute

// The number of the segment that a unit opens or joins, by the policy; -1: none. Inside one there are no
// others.
int32_t LayerLowering::segment_for(const LayerSpec& spec) {
  const std::string& policy = model_.recompute_policy;
  if (b_.segment >= 0 || b_.region().kind != ir::RegionKind::step) return b_.segment;
  if (policy == "marked" ? !spec.recompute : policy != "all" && policy != "sqrt") return -1;
  return units_++ / units_per_segment_;
}

// --- checks

const ir::Type& LayerLowering::type(const Flow& flow) const { return b_.region()[*flow.value].type; }

std::string LayerLowering::shape_of(const Flow& flow) const {
  const ir::Shape& shape = type(flow).shape;
  return ir::shape_text(ir::Shape(shape.begin() + 1, shape.end()));
}

bool LayerLowering::takes_floats(const LayerSpec& spec, const Flow& x) const {
  if (type(x).dtype == ir::DType::f32) return true;
  diag_.error(Kind::type_mismatch, spec.type_at, "layer `{}` takes f32, {} is i32", spec.name, x.label)
      .note(x.at, x.defined_here());
  return false;
}

bool LayerLowering::has_last_axis(const LayerSpec& spec, const Flow& x) const {
  if (type(x).shape.size() > 1) return true;
  diag_
      .error(Kind::shape_mismatch, spec.type_at,
             "layer `{}` works on the last axis, {} is one number per sample; give it the shape [1]",
             spec.name, x.label)
      .note(x.at, x.defined_here());
  return false;
}

// A value of a full micro-batch must have a size that the memory plan can add up.
bool LayerLowering::within_limits(const LayerSpec& spec, const Flow& output) const {
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  const ir::Shape& shape = type(output).shape;
  if (ir::fits(shape, model_.micro_batch) && ir::elements(shape, model_.micro_batch) <= kMaxElements)
    return true;
  diag_.error(Kind::out_of_range, spec.type_at,
              "the output of layer `{}` is too large: {} per sample, {} samples in a micro-batch", spec.name,
              shape_of(output), model_.micro_batch);
  return false;
}

// --- names

const Flow* LayerLowering::input(std::string_view name) const {
  const auto found = inputs_.find(name);
  return found != inputs_.end() ? &found->second : nullptr;
}

Flow LayerLowering::resolve(const Named& name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (const auto found = at->layers.find(name.name); found != at->layers.end()) return found->second.output;
  }
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, scope, true);
  return wrong();
}

std::optional<Flow> LayerLowering::find_output(const Named& name) const {
  if (const auto found = top_.layers.find(name.name); found != top_.layers.end()) return found->second.output;
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, top_, true);
  return std::nullopt;
}

std::optional<ir::BufferId> LayerLowering::tied_weight(const LayerSpec& spec, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    const auto found = at->layers.find(spec.tied->name);
    if (found == at->layers.end()) continue;
    if (found->second.weight) return found->second.weight;
    // The owner may be wrong itself, which is reported.
    const auto owner = std::find_if(at->specs->begin(), at->specs->end(),
                                    [&](const LayerSpec& other) { return other.name == spec.tied->name; });
    if (owner != at->specs->end() && owner->kind != LayerKind::linear && owner->kind != LayerKind::other) {
      diag_.error(Kind::conflict, spec.tied->at, "layer `{}` of type \"{}\" has no weight to share",
                  owner->name, owner->type);
    }
    return std::nullopt;
  }
  unknown(*spec.tied, scope, false);
  return std::nullopt;
}

void LayerLowering::unknown(const Named& name, const Scope& scope, bool with_inputs) const {
  std::vector<std::string_view> known;
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (at->specs != nullptr) {
      const auto later = std::find_if(at->specs->begin(), at->specs->end(),
                                      [&](const LayerSpec& other) { return other.name == name.name; });
      if (later != at->specs->end()) {
        diag_
            .error(Kind::unknown_name, name.at, "layer `{}` comes later; only earlier ones can be named",
                   name.name)
            .note(later->name_at, "it is defined here");
        return;
      }
    }
    for (const auto& [layer, _] : at->layers) known.push_back(layer);
  }
  if (with_inputs) {
    for (const auto& [input, _] : inputs_) known.push_back(input);
  }
  diag_.error(Kind::unknown_name, name.at, "there is no layer {}`{}` here{}", with_inputs ? "or input " : "",
              name.name, did_you_mean(name.name, known));
}

}  // namespace gacc::frontend
