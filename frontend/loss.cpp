// Losses as PyTorch defines them, with reduction "sum". What a loss computes is in losses/.
#include "frontend/loss.h"

#include <algorithm>

#include "ir/contains.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {

const std::vector<const LossType*>& all_losses() {
  static const std::vector<const LossType*> all = {
#define X(name) &losses::name,
#include "frontend/losses.def"
  };
  return all;
}

Words metric_names() {
  Words names;
  for (const LossType* loss : all_losses())
    for (const std::string_view metric : loss->metrics)
      if (std::ranges::count(names, metric) == 0) names.push_back(metric);
  return names;
}

void LossContext::need_metrics() {
  bool good = true;
  for (const Node& metric : model.metrics()) {
    Words with;
    for (const LossType* loss : all_losses())
      if (std::ranges::count(loss->metrics, metric.text) > 0) with.push_back(loss->schema.name);
    if (std::ranges::count(with, name()) > 0) continue;
    good = false;
    error(Kind::conflict, metric.at, "metric \"{}\" is for {}; the loss is {}", metric.text, list_words(with),
          name());
  }
  if (!good) throw Refused();
}

void LossContext::add_metric(const std::string& name, ir::Operand each) {
  if (!ir::is_float(b.type(each).dtype)) each = b.make("cast", name + ".real", {each});
  b.yield(
      {.role = ir::YieldRole::metric, .metric = name, .of = {}, .what = b.make("total_sum", name, {each})});
}

const Node* LossContext::judged() const {
  const auto found = std::ranges::find_if(
      model.metrics(), [](const Node& metric) { return contains(judged_metrics, metric.text); });
  return found == model.metrics().end() ? nullptr : &*found;
}

void LossContext::yield_answers(const ir::Operand& what) {
  b.yield({.role = ir::YieldRole::output, .metric = {}, .of = {}, .what = what});
}

ir::BufferId LossContext::given(const std::string& name, const std::vector<double>& values,
                                const Location& at) {
  return given(name, ir::Attr(values), {ir::DType::f32, {std::ssize(values)}}, at);
}

ir::BufferId LossContext::given(const std::string& name, const ir::Attr& setting, const ir::Type& type,
                                const Location& at) {
  b.module().settings.of_types[name] = setting;
  return b.module().need_buffer(
      {.name = name, .role = ir::BufferRole::given, .type = type, .offset = {}, .at = at});
}

void LossContext::need_weights(std::string_view key, int64_t columns) {
  const std::vector<double> weights = keys.reals(key);
  if (!weights.empty() && static_cast<int64_t>(weights.size()) != columns)
    refuse(Kind::shape_mismatch, keys.at(key), "`loss.{}` has {} numbers, {} gives {}", key, weights.size(),
           input.label, columns);
}

void LossContext::sum(ir::ValueId each, ir::ValueId counted) {
  b.yield({.role = ir::YieldRole::loss, .what = b.make("total_sum", "loss", {each})});
  b.yield({.role = ir::YieldRole::count, .what = b.make("total_sum", "count", {counted})});
}

ir::Operand LossContext::reshaped(std::string_view suffix, const ir::Shape& shape) {
  if (layers.type(target).shape == shape) return *target.value;
  return b.make("reshape", fmt::format("{}.{}", keys.text("target"), suffix), {*target.value},
                {{"shape", shape}});
}

std::optional<ir::Operand> LossContext::in_document(const ir::Shape& shape) {
  const LayerLowering::Documents* documents = layers.documents();
  if (documents == nullptr || shape.size() < 2 || shape[1] != documents->length) return std::nullopt;
  ir::Shape aligned(shape.size(), 1);
  aligned[0] = ir::kBatch, aligned[1] = documents->length;
  const std::string name = b.name(documents->given);
  ir::Operand numbers = documents->given;
  if (aligned.size() > 2) numbers = b.make("reshape", name + ".rows", {numbers}, {{"shape", aligned}});
  return b.make("greater", name + ".counted", {numbers, -1.0});
}

ir::ValueId LossContext::counted(const std::string& name, ir::ValueId each) {
  const std::optional<ir::Operand> where = in_document(b.type(each).shape);
  return where ? b.make("select", name, {*where, each, 0.0}) : each;
}

void LossContext::need_count(int64_t per_sample) {
  const auto window = ir::checked_mul(model.micro_batch, model.accumulate);
  const auto total = window ? ir::checked_mul(*window, per_sample) : std::nullopt;
  if (!total || *total >= int64_t{1} << 31)
    throw Refused(error(Kind::out_of_range, model.micro_batch_at(),
                        "an update counts more than 2^31 elements: {} x {} x {} per sample",
                        ir::counted(model.micro_batch, "sample"), ir::counted(model.accumulate, "launch"),
                        per_sample));
}

void LossContext::elements(Each each) {
  const ir::Shape shape = this->shape();
  if (ir::elements(shape, 1) != ir::elements(layers.type(target).shape, 1))
    refuse(Kind::shape_mismatch, keys.at("target"),
           "{} needs as many targets as outputs: {} has {}, {} gives {}", name(), target.label,
           layers.shape_of(target), input.label, shape_text());
  need_count(ir::elements(shape, 1));
  need_metrics();
  ir::Operand wanted = reshaped("shaped", shape);
  if (layers.type(target).dtype != ir::DType::f32)
    wanted = b.make("cast", keys.text("target") + ".real", {wanted});
  const ir::Operand x = this->x();
  const ir::ValueId losses = each(*this, x, wanted), ones = b.make("ones_like", "loss.ones", {losses});
  sum(counted("loss.counted", losses), counted("loss.count", ones));
  if (!metrics) return;
  for (const Node& metric : model.metrics()) {
    b.location = metric.at;
    if (!contains(judged_metrics, metric.text)) measure(metric.text, x, wanted);
  }
  b.location = keys.type_at;
  if (model.loss.type != &losses::bce_with_logits) return;
  const Node* const wants = judged();
  if (wants != nullptr && in_document(shape))
    refuse(Kind::conflict, wants->at, "metric \"{}\" of bce_with_logits is not for documents in a window",
           wants->text);
  if (wants != nullptr || ir::elements(shape, 1) == 1) yield_answers(x);
}

// Sums over all elements (runtime/session/evaluation.cpp makes the metrics of them).
void LossContext::measure(const std::string& metric, const ir::Operand& x, const ir::Operand& wanted) {
  const auto each = [&](std::string_view op, const char* suffix, const ir::Operand& one,
                        const ir::Operand& other) {
    return b.make(op, metric + suffix, {one, other});
  };
  if (metric == "accuracy") {  // the logit says what the target does; NaN says nothing
    const ir::ValueId said = each("greater", ".said", x, 0.0), meant = each("greater", ".meant", wanted, 0.5);
    const ir::ValueId hit = each("equal", ".hit", said, meant), number = each("equal", ".number", x, x);
    add_metric(metric, counted(metric + ".counted", each("mul", ".right", hit, number)));
  } else {
    const ir::ValueId error = each(metric == "mae" ? "absolute_error" : "squared_error", ".each", x, wanted);
    add_metric(metric, counted(metric + ".counted", error));
  }
  if (metric != "r2") return;
  // Targets less a number near their mean, which the runtime sets: their squares keep the digits.
  const ir::ValueId shifted =
      counted("r2.counted", each("sub", ".shifted", wanted, b.module().named(ir::Named::r2_shift)));
  add_metric("r2.targets", shifted);
  add_metric("r2.squares", b.make("square", "r2.square", {shifted}));
}

void lower_loss(LayerLowering& layers, Flow output, bool metrics) {
  const LossSpec& loss = layers.model.loss;
  if (!loss.valid) return;
  const Flow* target = layers.need_input(loss.keys.nodes("target").front());
  if (loss.keys.has("input")) output = layers.output(loss.keys.nodes("input").front());
  if (target == nullptr || !target->value || !output.value) return;
  layers.b.location = loss.keys.type_at;
  LossContext context{{layers, loss.keys, std::move(output)}, *target, metrics};
  try {
    if (layers.type(context.input).dtype != ir::DType::f32)
      context.refuse(Kind::type_mismatch, loss.keys.type_at, "the loss takes f32, {} is i32",
                     context.input.label);
    loss.type->lower(context);
  } catch (const Refused&) {  // reported
  }
}

void build_measure(ir::Module& module, ir::ValueId output) {
  // Sums that must not show how many samples a launch has are cut as those of a window are.
  if (ir::keeps_bits(module.settings)) return;
  ir::Region& region = module.measure;
  region = module.eval;
  region.kind = ir::RegionKind::measure;
  const ir::ValueId given = region.add_value("predicted", region[output].type);
  region.inputs.insert(region.inputs.begin(), given);
  const auto replace = [&](ir::Operand& operand) {
    if (operand == ir::Operand(output)) operand = given;
  };
  for (ir::Op& op : region.ops) op.each_operand(replace);
  for (ir::Yield& yield : region.yields) replace(yield.what);
  ir::remove_unread(region);
}

}  // namespace gacc::frontend
