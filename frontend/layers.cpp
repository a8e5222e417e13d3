#include "frontend/layers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ir/kernel.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {

namespace {

constexpr int64_t kMaxLayers = 4096;  // with all repeats written out

// The units of recompute: layers, and copies of repeated blocks.
double count_units(const std::vector<LayerSpec>& specs) {
  double units = 0;
  for (const LayerSpec& spec : specs) {
    if (spec.type != &layers::sequential)
      units += 1;
    else
      units += spec.keys.has("repeat") ? static_cast<double>(spec.keys.integer("repeat"))
                                       : count_units(spec.bodies.front());
  }
  return units;
}

}  // namespace

ir::Shape with_batch(const ir::Shape& per_sample) {
  ir::Shape shape{ir::kBatch};
  shape.insert(shape.end(), per_sample.begin(), per_sample.end());
  return shape;
}

LayerLowering::LayerLowering(ir::Builder builder, Parameters& parameters, const ModelFile& model)
    : b(std::move(builder)), parameters(parameters), model(model), diag_(b.diag()) {}

Flow LayerLowering::run() {
  Flow first;
  for (const InputSpec& input : model.inputs) {
    Flow flow{.label = fmt::format("input `{}`", input.name), .at = input.at};
    const ir::Shape shape = input.valid ? with_batch(input.keys.integers("shape")) : ir::Shape{};
    if (input.valid && !ir::fits(shape, model.micro_batch)) {
      diag_.error(Kind::out_of_range, input.at, "a micro-batch of input `{}` has too many elements",
                  input.name);
    } else if (input.valid) {
      flow.value = b.region().add_value(input.name, {*ir::parse_dtype(input.keys.text("dtype")), shape});
      b.region().inputs.push_back(*flow.value);
    }
    if (inputs_.empty()) first = flow;
    inputs_.emplace(input.name, std::move(flow));
  }
  const Node* documents = nullptr;
  find_documents(model.layers, documents);
  if (*model.settings.recompute.policy == "sqrt") {  // about as many segments as each has units
    const double units = std::min(count_units(model.layers), static_cast<double>(kMaxLayers));
    units_per_segment_ = std::max(1, static_cast<int32_t>(std::ceil(units / std::ceil(std::sqrt(units)))));
  }
  const Flow output = list(model.layers, first, top_);
  if (b.region().kind == ir::RegionKind::step) check_adapted();
  return output;
}

// Takes the input that attention layers name: one for all, since positions follow from it.
void LayerLowering::find_documents(const std::vector<LayerSpec>& specs, const Node*& named) {
  for (const LayerSpec& spec : specs) {
    for (const std::vector<LayerSpec>& body : spec.bodies) find_documents(body, named);
    if (spec.type != &layers::attention || spec.keys.nodes("documents").empty()) continue;
    const Node& name = spec.keys.nodes("documents").front();
    if (named != nullptr) {
      if (named->text != name.text)
        diag_
            .error(Kind::conflict, name.at,
                   "documents are `{}` here and `{}` in another layer; a model has one input of them",
                   name.text, named->text)
            .note(named->at, "it is named here");
      continue;
    }
    named = &name;
    const Flow* found = need_input(name);
    if (found == nullptr || !found->value) continue;
    const ir::Type given = type(*found);
    if (given.dtype != ir::DType::i32 || given.shape.size() != 2) {
      diag_
          .error(Kind::type_mismatch, name.at,
                 "documents are i32 numbers, one for each position; {} is {} {}", found->label,
                 ir::dtype_text(given.dtype), shape_of(*found))
          .note(found->at, found->defined_here());
      continue;
    }
    b.location = name.at;
    const std::vector<ir::ValueId> made =
        b.make_n("documents", {name.text + ".numbers", name.text + ".positions", name.text + ".reach"},
                 {*found->value});
    documents_ = Documents{.given = *found->value,
                           .numbers = made[0],
                           .positions = made[1],
                           .spans = b.make("documents.spans", name.text + ".spans", {made[2]}),
                           .length = given.shape[1]};
  }
}

void LayerLowering::take_inputs() {
  for (const ir::ValueId id : b.region().inputs) {
    const std::string& name = b.region()[id].name;
    inputs_.emplace(name, Flow{.value = id, .label = fmt::format("input `{}`", name), .at = b.region().at});
    // Numbers with a range choose rows of a table.
    if (const std::optional<int64_t> range = b.module().settings.input(name).range)
      table_rows_.emplace(name, *range);
  }
}

Flow LayerLowering::list(const std::vector<LayerSpec>& specs, Flow x, Scope& scope) {
  scope.specs = &specs;
  const bool outer_keep_f32 = b.keep_f32;
  for (const LayerSpec& spec : specs) {
    std::vector<Flow> inputs;
    if (spec.keys.type != nullptr)  // else nothing is known of what it takes
      for (const std::string_view key : {"input", "inputs"})
        for (const Node& name : spec.keys.nodes(key)) inputs.push_back(resolve(name, scope));
    if (inputs.empty()) inputs.push_back(std::move(x));
    if (++lowered_ == kMaxLayers + 1)
      diag_.error(Kind::out_of_range, spec.keys.type_at, "the model has more than {} layers, repeats counted",
                  kMaxLayers);
    if (lowered_ > kMaxLayers) return {};
    b.location = spec.keys.type_at;
    b.keep_f32 = scope.keep_f32 || spec.keys.has("precision");
    const int32_t outer = b.segment;
    if (spec.type != &layers::sequential) b.segment = segment_for(spec);
    Layer layer = lower(spec, std::move(inputs), scope);
    b.segment = outer;
    b.keep_f32 = outer_keep_f32;
    layer.output.label = fmt::format("`{}`", spec.name);
    layer.output.at = spec.name_at;
    if (layer.output.value && spec.type != &layers::sequential)
      done_.push_back({&spec, scope.prefix + spec.name, *layer.output.value});
    x = layer.output;
    scope.layers.insert_or_assign(spec.name, std::move(layer));
  }
  return x;
}

Layer LayerLowering::lower(const LayerSpec& spec, std::vector<Flow> inputs, const Scope& scope) {
  if (spec.type == nullptr) return {};
  const size_t first_op = b.region().ops.size();
  try {
    // Blocks are entered even when their input is wrong: what is in them is checked as far as it can be.
    if (!spec.type->block) {
      if (!spec.valid || !std::ranges::all_of(inputs, [](const Flow& x) { return x.value.has_value(); }))
        return {};
      for (const Flow& x : inputs) take(spec, x, spec.type->tokens ? ir::DType::i32 : ir::DType::f32);
    }
    LayerContext context(*this, spec, std::move(inputs), scope);
    const Layer layer = spec.type->lower(context);
    if (layer.output.value) check_products(spec, first_op);
    if (layer.output.value) check_size(spec, layer.output);
    return layer;
  } catch (const Refused&) {
    return {};
  }
}

std::vector<LayerSummary> LayerLowering::summary() {
  std::vector<LayerSummary> rows;
  for (const Lowered& layer : done_) {
    const ir::Shape& shape = b.region()[layer.output].type.shape;
    LayerSummary& row = rows.emplace_back();
    row.name = layer.path;
    row.type = layer.spec->type->schema.name;
    if (layer.spec->type == &layers::linear) row.tied = layer.spec->keys.text("tied");
    row.output.assign(shape.begin() + 1, shape.end());
    if (layer.spec->type->block) continue;  // its parameters are those of its body
    for (const ir::Buffer& buffer : b.module().buffers) {
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
  const std::string& policy = *model.settings.recompute.policy;
  if (b.segment >= 0 || b.region().kind != ir::RegionKind::step) return b.segment;
  if (policy == "marked" ? !spec.keys.flag("recompute") : policy != "all" && policy != "sqrt") return -1;
  return units_++ / units_per_segment_;
}

// --- names: a layer of this block or of one around it, or an input

const Flow* LayerLowering::input(std::string_view name) const {
  const auto found = inputs_.find(name);
  return found != inputs_.end() ? &found->second : nullptr;
}

const Flow* LayerLowering::need_input(const Node& name) const {
  if (const Flow* found = input(name.text)) return found;
  Words known;
  for (const InputSpec& input : model.inputs) known.push_back(input.name);
  const std::string hint = did_you_mean(name.text, known);
  diag_.error(Kind::unknown_name, name.at, "there is no input `{}`{}", name.text,
              hint.empty() ? fmt::format("; the inputs are `{}`", fmt::join(known, "`, `")) : hint);
  return nullptr;
}

std::optional<int64_t> LayerLowering::rows_of(std::string_view input) const {
  const auto found = table_rows_.find(input);
  return found != table_rows_.end() ? std::optional(found->second) : std::nullopt;
}

const Layer* LayerLowering::find(std::string_view name, const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->parent)
    if (const auto found = at->layers.find(name); found != at->layers.end()) return &found->second;
  return nullptr;
}

Flow LayerLowering::resolve(const Node& name, const Scope& scope) const {
  if (const Layer* layer = find(name.text, scope)) return layer->output;
  if (const Flow* found = input(name.text)) return *found;
  unknown(name, scope, true);
  return {};
}

ir::BufferId LayerLowering::tied_weight(const Node& name, const Scope& scope) const {
  const Layer* owner = find(name.text, scope);
  if (owner == nullptr) unknown(name, scope, false);
  if (owner != nullptr && owner->weight) return *owner->weight;
  if (owner != nullptr && owner->output.value)  // an owner that is wrong itself was reported
    diag_.error(Kind::conflict, name.at, "layer `{}` has no weight to share", name.text);
  throw Refused();
}

void LayerLowering::unknown(const Node& name, const Scope& scope, bool with_inputs) const {
  Words known;
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (at->specs != nullptr) {
      const auto later = std::ranges::find(*at->specs, name.text, &LayerSpec::name);
      if (later != at->specs->end()) {
        diag_
            .error(Kind::unknown_name, name.at, "layer `{}` comes later; only earlier ones can be named",
                   name.text)
            .note(later->name_at, "it is defined here");
        return;
      }
    }
    for (const auto& [layer, _] : at->layers) known.push_back(layer);
  }
  if (with_inputs)
    for (const auto& [input, _] : inputs_) known.push_back(input);
  const std::string block = name.text.substr(0, name.text.find('.'));
  const bool inside = block != name.text && std::ranges::count(known, block) > 0;
  const std::string_view part =
      std::string_view(name.text).substr(std::min(block.size() + 1, name.text.size()));
  if (inside && (part == "weight" || part == "bias"))
    diag_.error(Kind::unknown_name, name.at, "`{}` is no layer; its layer is `{}`", name.text, block);
  else if (inside)
    diag_.error(Kind::unknown_name, name.at,
                "`{}` lies in the block `{}`, and its layers cannot be named from outside; put both layers "
                "into one block or into none",
                name.text, block);
  else
    diag_.error(Kind::unknown_name, name.at, "there is no layer {}`{}` here{}",
                with_inputs ? "or input " : "", name.text, did_you_mean(name.text, known));
}

// --- checks

std::string LayerLowering::shape_of(const Flow& flow) const {
  const ir::Shape shape = type(flow).shape;
  return ir::shape_text(ir::Shape(shape.begin() + 1, shape.end()));
}

void LayerLowering::take(const LayerSpec& spec, const Flow& x, ir::DType dtype) const {
  if (type(x).dtype == dtype) return;
  throw Refused(diag_
                    .error(Kind::type_mismatch, spec.keys.type_at, "layer `{}` takes {}, {} is {}", spec.name,
                           ir::dtype_text(dtype), x.label, ir::dtype_text(type(x).dtype))
                    .note(x.at, x.defined_here()));
}

// A value of a full micro-batch must have a size that the memory plan can add up.
void LayerLowering::check_size(const LayerSpec& spec, const Flow& output) const {
  constexpr int64_t kMaxElements = int64_t{1} << 40;
  const ir::Shape shape = type(output).shape;
  if (ir::fits(shape, model.micro_batch) && ir::elements(shape, model.micro_batch) <= kMaxElements) return;
  throw Refused(diag_.error(Kind::out_of_range, spec.keys.type_at,
                            "the output of layer `{}` is too large: {} per sample, {} in a micro-batch",
                            spec.name, shape_of(output), ir::counted(model.micro_batch, "sample")));
}

// The matrix products of the layer, which are its ops from `first_op` on. Those of the backward pass have the
// same extents.
void LayerLowering::check_products(const LayerSpec& spec, size_t first_op) {
  for (size_t i = first_op; i < b.region().ops.size(); ++i) {
    const ir::Op& op = b.region().ops[i];
    if (op.info->lowering != ir::Lowering::gemm) continue;
    for (const ir::Operand& operand : op.operands) {
      const ir::Shape& shape = b.type(operand).shape;
      const int64_t rows = ir::rows(shape, model.micro_batch), columns = ir::columns(shape);
      if (std::max(rows, columns) <= ir::kMostMatrixExtent) continue;
      const bool features =
          spec.type == &layers::linear && spec.keys.integer("features") > ir::kMostMatrixExtent;
      Report& report = diag_.error(
          Kind::out_of_range, features ? spec.keys.at("features") : spec.keys.type_at,
          "layer `{}` multiplies a matrix of {} x {}; a product takes at most {} rows and columns", spec.name,
          rows, columns, ir::kMostMatrixExtent);
      if (ir::has_batch(shape) && model.micro_batch > 1)
        report.note(model.micro_batch_at(), fmt::format("a micro-batch has {} samples", model.micro_batch));
      throw Refused(report);
    }
  }
}

// --- what the code of layers works with

ir::Attrs LoweringContext::attrs_of(std::string_view op, ir::Attrs others) const {
  for (const ir::AttrSpec& attr : ir::find_op(op)->attrs)
    if (keys.lists(attr.name) && keys.has(attr.name)) others.emplace(attr.name, *keys[attr.name].value);
  return others;
}

void LayerContext::need_last_axis() {
  if (shape().size() < 2)
    refuse(Kind::shape_mismatch, spec.keys.type_at,
           "layer `{}` works on the last axis, {} is one number per sample; give it the shape [1]", spec.name,
           input.label);
}

void LayerContext::need_axes(size_t axes, std::string_view what) {
  if (shape().size() != axes)
    refuse(Kind::shape_mismatch, spec.keys.type_at, "layer `{}` takes {} {} gives {}", spec.name, what,
           input.label, shape_text());
}

void LayerContext::need_groups(int64_t channels, int64_t groups) {
  if (channels % groups != 0)
    refuse(Kind::shape_mismatch, keys.at("groups"),
           "layer `{}`: {} input channels do not divide into {} groups", spec.name, channels, groups);
}

ir::BufferId LayerContext::parameter(std::string_view suffix, ir::Shape shape, Parameters::Standard standard,
                                     Fan fan, std::string_view at) {
  const bool own = suffix == "proj.weight" && keys.lists("proj_init") && keys.given("proj_init");
  return layers.parameters.get(fmt::format("{}.{}", path, suffix), std::move(shape),
                               keys[own                        ? "proj_init"
                                    : suffix.ends_with("bias") ? "bias_init"
                                                               : "init"],
                               standard, fan, trains(), at.empty() ? spec.keys.type_at : keys.at(at));
}

ir::ValueId LayerContext::projection(const std::string& prefix, const std::string& value, ir::ValueId x,
                                     int64_t out, bool biased) {
  const int64_t in = b.type(x).shape.back();
  const auto spread = Parameters::Standard::spread;
  const ir::BufferId weight = parameter(prefix + "weight", {out, in}, spread, {in, out});
  const ir::ValueId y = b.make("matmul", biased ? value + ".mm" : value, {x, weight}, {{"tb", true}});
  if (!biased) return y;
  return b.make("add", value, {y, parameter(prefix + "bias", {out}, spread, {in, out})});
}

ir::ValueId LayerContext::activate(ir::ValueId x, std::string_view key) {
  const Location outer = std::exchange(b.location, keys.at(key));
  const ir::ValueId y = b.make(keys.text(key), path, {x}, attrs_of(keys.text(key)));
  b.location = outer;
  return y;
}

// The runtime refuses data outside of an input's range, so that a kernel need not look: the range is that of
// the smallest table, unless the file says less.
void LayerContext::choose_rows(int64_t rows, const Location& at) {
  for (const InputSpec& from : model.inputs) {
    const Flow* flow = layers.input(from.name);
    if (flow == nullptr || flow->value != input.value) continue;
    const int64_t range = from.range();
    if (range > rows)
      throw Refused(error(Kind::shape_mismatch, from.range_at(), "input `{}` has {}, layer `{}` has {}",
                          from.name, ir::counted(range, "value"), spec.name, ir::counted(rows, "vector"))
                        .note(at, "the number of vectors is set here"));
    const auto smallest = layers.table_rows_.emplace(from.name, rows).first;
    smallest->second = std::min(smallest->second, rows);
    if (range == 0 && training())  // the loss of step may say less
      b.module().settings.inputs[from.name].range = smallest->second;
  }
}

bool LayerContext::trains(int64_t copy) const {
  if (scope_.frozen) return false;
  const KeyValue& said = keys["trainable"];
  if (said.node == nullptr) return scope_.trained || !model.adapts;
  const bool list = said.good && said.node->is_list();
  return list ? said.node->items[static_cast<size_t>(copy) % said.node->items.size()].flag
              : keys.flag("trainable");
}

Flow LayerContext::body(Flow x, const std::string& prefix, int64_t copy) {
  LayerLowering::Scope inner{.parent = &scope_,
                             .prefix = prefix,
                             .frozen = scope_.frozen || (keys.given("trainable") && !trains(copy)),
                             .trained = scope_.trained || (keys.given("trainable") && trains(copy)),
                             .keep_f32 = scope_.keep_f32 || keys.has("precision")};
  return layers.list(spec.bodies[static_cast<size_t>(copy) % spec.bodies.size()], std::move(x), inner);
}

}  // namespace gacc::frontend
