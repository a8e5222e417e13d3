// Lists of layers, blocks and what every layer needs; the kinds of layers are in layers_*.cpp.
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

}  // namespace

ir::Shape with_batch(const ir::Shape& per_sample) {
  ir::Shape shape{ir::kBatch};
  shape.insert(shape.end(), per_sample.begin(), per_sample.end());
  return shape;
}

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
    const size_t first_op = b_.region().ops.size();
    Layer layer = lower(spec, std::move(inputs), scope);
    b_.segment = outer;
    b_.full = full;
    layer.output.label = fmt::format("`{}`", spec.name);
    layer.output.at = spec.name_at;
    if (layer.output.value && !(products_fit(spec, first_op) && within_limits(spec, layer.output)))
      layer.output.value.reset();
    if (layer.output.value && spec.kind != LayerKind::sequential)
      done_.push_back({&spec, scope.prefix + spec.name, *layer.output.value});
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

std::vector<LayerSummary> LayerLowering::summary() const {
  std::vector<LayerSummary> rows;
  for (const Lowered& layer : done_) {
    const ir::Shape& shape = b_.region()[layer.output].type.shape;
    LayerSummary& row = rows.emplace_back();
    row.name = layer.path;
    row.type = layer.spec->type;
    if (layer.spec->tied) row.tied = layer.spec->tied->name;
    row.output.assign(shape.begin() + 1, shape.end());
    if (layer.spec->kind == LayerKind::residual) continue;  // its parameters are those of its body
    for (const ir::Buffer& buffer : b_.module().buffers) {
      if (buffer.kind != ir::BufferKind::param || !buffer.name.starts_with(layer.path + ".")) continue;
      const int64_t count = ir::elements(buffer.type.shape, 1);
      row.parameters += count;
      row.trained += buffer.trainable ? count : 0;
    }
  }
  return rows;
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

// The matrix products of the layer, which are its ops from `first_op` on. Those of the backward pass have the
// same extents.
bool LayerLowering::products_fit(const LayerSpec& spec, size_t first_op) const {
  for (size_t i = first_op; i < b_.region().ops.size(); ++i) {
    const ir::Op& op = b_.region().ops[i];
    if (op.info->lowering != ir::Lowering::gemm) continue;
    for (const ir::Operand& operand : op.operands) {
      const ir::Shape& shape = b_.type(operand).shape;
      const ir::MatrixExtents matrix = ir::matrix_extents(shape, model_.micro_batch);
      if (std::max(matrix.rows, matrix.columns) <= ir::kMostMatrixExtent) continue;
      Report& report = diag_.error(
          Kind::out_of_range, spec.features > ir::kMostMatrixExtent ? spec.features_at : spec.type_at,
          "layer `{}` multiplies a matrix of {} x {}; a product takes at most {} rows and columns", spec.name,
          matrix.rows, matrix.columns, ir::kMostMatrixExtent);
      if (ir::has_batch(shape) && model_.micro_batch > 1)
        report.note(model_.micro_batch_at, fmt::format("a micro-batch has {} samples", model_.micro_batch));
      return false;
    }
  }
  return true;
}

}  // namespace gacc::frontend
