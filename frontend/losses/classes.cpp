// cross_entropy: one class of many.
#include <algorithm>
#include <cmath>

#include "frontend/loss.h"

namespace gacc::frontend {

namespace {

// The runtime refuses labels that are no class: the range of the target, which is the number of classes
// unless the file says less.
void set_range(LossContext& l, int64_t classes) {
  const std::string target = l.keys.text("target");
  for (const InputSpec& input : l.model.inputs) {
    if (input.name == target && input.range() > classes)
      l.refuse(Kind::shape_mismatch, input.range_at(), "input `{}` has {} classes, {} gives {}", input.name,
               input.range(), l.input.label, classes);
  }
  ir::InputSettings& settings = l.b.module().settings.inputs[target];
  const std::optional<int64_t> rows = l.layers.rows_of(target);
  const int64_t ignored = l.keys.integer("ignore_index");
  settings.range = std::min(settings.range.value_or(classes), classes);  // that of an embedding may be larger
  // A target that also chooses an embedding's vectors must be one of them: then nothing else may be ignored.
  if (!rows || (ignored >= 0 && ignored < *rows)) settings.ignore_index = ignored;
}

// A mean does not depend on the scale of its weights; a power of two changes no bit of it. The largest
// becomes 1 to 2, so that gradients in half precision have the range that they have without weights.
std::vector<double> scaled(std::vector<double> weights) {
  int exponent = 0;
  std::frexp(*std::ranges::max_element(weights), &exponent);
  for (double& weight : weights) weight = std::ldexp(weight, 1 - exponent);
  return weights;
}

// Output [B, .., C] and target i32 [B, ..] must fit. Gives [B, .., 1].
ir::Shape rows_of(LossContext& l) {
  const ir::Shape shape = l.shape();
  if (shape.size() < 2)
    l.refuse(Kind::shape_mismatch, l.model.loss.keys.type_at,
             "cross_entropy needs classes on the last axis, {} is one number per sample", l.input.label);
  if (l.layers.type(l.target).dtype != ir::DType::i32)
    throw Refused(l.error(Kind::type_mismatch, l.keys.at("target"),
                          "cross_entropy takes class numbers, {} is f32", l.target.label)
                      .note(l.target.at, "give it dtype = \"i32\""));
  ir::Shape rows = shape;
  rows.back() = 1;
  if (ir::elements(rows, 1) != ir::elements(l.layers.type(l.target).shape, 1))
    throw Refused(
        l.error(Kind::shape_mismatch, l.keys.at("target"),
                "cross_entropy needs a target {} per sample, {} has {}",
                ir::shape_text(ir::Shape(shape.begin() + 1, shape.end() - 1)), l.target.label,
                l.layers.shape_of(l.target))
            .note(l.input.at, fmt::format("{} gives {}, classes last", l.input.label, l.shape_text())));
  l.need_count(ir::elements(rows, 1));
  set_range(l, shape.back());
  l.need_weights("class_weights", shape.back());
  return rows;
}

void lower(LossContext& l) {
  const ir::Shape rows = rows_of(l);
  const ir::Operand logits = l.x();
  ir::Operand wanted = l.reshaped("rows", rows);
  if (const std::optional<ir::Operand> where = l.in_document(rows))
    wanted = l.b.make("select", l.keys.text("target") + ".counted",
                      {*where, wanted, static_cast<double>(l.keys.integer("ignore_index"))});
  const bool weighted = l.keys.has("class_weights");
  std::vector<ir::Operand> operands = {logits, wanted};
  std::vector<std::string> names = {"loss.rows", "loss.max", "loss.log", "loss.counted"};
  if (weighted) {
    operands.emplace_back(
        l.given("loss.class_weights", scaled(l.keys.reals("class_weights")), l.keys.at("class_weights")));
    names.insert(names.end(), {"loss.weights", "loss.mass"});
  }
  const std::string_view op = weighted ? "weighted_cross_entropy" : "cross_entropy";
  const auto results = l.b.make_n(op, std::move(names), std::move(operands), l.attrs_of(op));
  const ir::ValueId counted = results[3];
  l.sum(results[0], counted);
  if (weighted)
    l.b.yield({.role = ir::YieldRole::weights, .what = l.b.make("total_sum", "weight", {results[4]})});
  l.need_metrics();
  if (!l.metrics) return;
  for (const Node& metric : l.model.metrics()) {
    if (metric.text == "perplexity") continue;  // exp(mean loss): the runtime's
    // accuracy: the first largest class is the target
    l.b.location = metric.at;
    const ir::ValueId best = l.b.make("row_argmax", "accuracy.best", {logits});
    const ir::ValueId hit = l.b.make("equal", "accuracy.hit", {best, wanted});
    l.add_metric(metric.text, l.b.make("mul", "accuracy.right", {hit, counted}));
  }
}

}  // namespace

const LossType losses::cross_entropy{
    .schema = {.name = "cross_entropy",
               .says = "-log softmax(x)[target], classes on the last axis.",
               .keys = {{"ignore_index", Form::integer, -100, "targets of this value count nothing",
                         between(-2147483648.0, kLargest)},
                        {"label_smoothing", Form::real, 0.0, "the part of a target that all classes share",
                         fraction},
                        {"class_weights", Form::reals, no_default,
                         "one number for each class; the mean is that of the weights", at_least(0)}},
               .example = "target = \"label\""},
    .metrics = {"accuracy", "perplexity"},
    .check =
        [](const Values& keys, Diag& diag) {
          const std::vector<double> weights = keys.reals("class_weights");
          if (!weights.empty() &&
              std::ranges::all_of(weights, [](double w) { return static_cast<float>(w) == 0; }))
            diag.error(Kind::out_of_range, keys.at("class_weights"),
                       "`loss.class_weights` are all 0: nothing would count");
        },
    .lower = lower,
};

}  // namespace gacc::frontend
