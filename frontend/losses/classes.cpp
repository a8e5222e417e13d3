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

// Weights by the words that stand for classes in data, or by their numbers; 1 of a class that is not named.
std::vector<double> named_weights(LossContext& l, const Node& table, int64_t classes) {
  const ir::Texts& words = l.model.settings.input(l.keys.text("target")).values;
  std::vector<std::string> names(words.begin(), words.end());
  for (int64_t i = std::ssize(names); i < classes; ++i) names.push_back(std::to_string(i));
  std::vector<double> weights(static_cast<size_t>(classes), 1.0);
  bool good = true;
  names.resize(weights.size());
  const Words known(names.begin(), names.end());
  for (const Entry& entry : table.entries) {
    const bool named = entry.key.size() > 1;  // a letter is near to each number
    const std::string hint = named ? did_you_mean(entry.key, known) : "";
    const auto found = std::ranges::find(names, entry.key);
    const auto at = static_cast<size_t>(found - names.begin());
    const Node& value = entry.value;
    const bool number = value.form == Node::Form::integer || value.form == Node::Form::real;
    good &= at < weights.size() && number && value.number() >= 0 &&
            std::isfinite(static_cast<float>(value.number()));
    if (at >= weights.size())
      l.error(Kind::unknown_name, entry.key_at, "`loss.class_weights`: there is no class \"{}\"{}", entry.key,
              hint.empty() ? fmt::format("; its classes are {}", list_words(known)) : hint);
    else if (!number)
      l.error(Kind::wrong_type, value.at, "`loss.class_weights.{}` must be a number, not {}", entry.key,
              form_text(value.form));
    else if (!good)
      l.error(Kind::out_of_range, value.at, "`loss.class_weights.{}` must be finite and at least 0, not {}",
              entry.key, value.number());
    else
      weights[at] = value.number();
  }
  if (!good) throw Refused();
  return weights;
}

// A weight for each class; "balanced" ones are learnt by the runtime from its training data.
ir::BufferId class_weights(LossContext& l) {
  constexpr std::string_view key = "class_weights";
  const int64_t classes = l.shape().back();
  const Location& at = l.keys.at(key);
  const Node& node = *l.keys[key].node;
  if (node.form == Node::Form::text)
    return l.given("loss.class_weights", node.text, {ir::DType::f32, {classes}}, at);
  l.need_weights(key, classes);
  const std::vector<double> weights = node.is_table() ? named_weights(l, node, classes) : l.keys.reals(key);
  if (std::ranges::all_of(weights, [](double weight) { return static_cast<float>(weight) == 0; }))
    throw Refused(l.error(Kind::out_of_range, at, "`loss.class_weights` are all 0: nothing would count"));
  return l.given("loss.class_weights", scaled(weights), at);
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
  return rows;
}

// The area under the curve takes one score a sample: the second class's logit less the first's.
void check_auc(LossContext& l) {
  for (const Node& metric : l.model.metrics()) {
    if (metric.text != "auc") continue;
    if (l.shape().back() != 2)
      l.refuse(Kind::conflict, metric.at, "metric \"auc\" is for two classes; {} gives {}", l.input.label,
               l.shape().back());
    if (l.in_document(l.shape()))
      l.refuse(Kind::conflict, metric.at, "metric \"auc\" is not for documents in a window");
  }
}

void measure(LossContext& l, const ir::Operand& wanted, const ir::Operand& counted) {
  const ir::Operand logits = l.x();
  const int64_t classes = l.shape().back();
  std::optional<ir::ValueId> best;  // the first largest class
  for (const Node& metric : l.model.metrics()) {
    if (metric.text != "accuracy") continue;  // perplexity is exp(mean loss): the runtime's
    l.b.location = metric.at;
    best = l.b.make("row_argmax", "accuracy.best", {logits});
    const ir::ValueId hit = l.b.make("equal", "accuracy.hit", {*best, wanted});
    l.add_metric(metric.text, l.b.make("mul", "accuracy.right", {hit, counted}));
  }
  // Logits of few classes are judged as they are, of many the number of the largest, or -1 where nothing counts.
  const Node* const wants = l.judged();
  l.b.location = wants != nullptr ? wants->at : l.keys.type_at;
  const bool documents = l.in_document(l.shape()).has_value();
  if (classes > 1 && classes <= kMostConfused && !documents) return l.yield_answers(logits);
  if (wants == nullptr) return;
  if (!best) best = l.b.make("row_argmax", "answer.best", {logits});
  const ir::ValueId given = l.b.make("select", "answer.given", {counted, *best, -1.0});
  l.yield_answers(l.b.make("cast", "answer", {given}));
  l.b.module().settings.of_types["loss.answer_classes"] = classes;
}

void lower(LossContext& l) {
  const ir::Shape rows = rows_of(l);
  const ir::Operand logits = l.x();
  ir::Operand wanted = l.reshaped("rows", rows);
  if (const std::optional<ir::Operand> where = l.in_document(rows))
    wanted = l.b.make("select", l.keys.text("target") + ".counted",
                      {*where, wanted, static_cast<double>(l.keys.integer("ignore_index"))});
  const bool weighted = l.keys.given("class_weights");
  std::vector<ir::Operand> operands = {logits, wanted};
  std::vector<std::string> names = {"loss.rows", "loss.max", "loss.log", "loss.counted"};
  if (weighted) {
    operands.emplace_back(class_weights(l));
    names.insert(names.end(), {"loss.weights", "loss.mass"});
  }
  const std::string_view op = weighted ? "weighted_cross_entropy" : "cross_entropy";
  const auto results = l.b.make_n(op, std::move(names), std::move(operands), l.attrs_of(op));
  const ir::ValueId counted = results[3];
  l.sum(results[0], counted);
  if (weighted)
    l.b.yield({.role = ir::YieldRole::weights, .what = l.b.make("total_sum", "weight", {results[4]})});
  l.need_metrics();
  check_auc(l);
  if (l.metrics) measure(l, wanted, counted);
}

const Table by_class{.name = "`class_weights`",
                     .path = "loss.class_weights",
                     .says = "A weight for each class that is named."};

}  // namespace

const LossType losses::cross_entropy{
    .schema =
        {.name = "cross_entropy",
         .says = "-log softmax(x)[target], classes on the last axis.",
         .keys = {{"ignore_index", Form::integer, -100, "targets of this value count nothing",
                   between(-2147483648.0, kLargest)},
                  {"label_smoothing", Form::real, 0.0, "the part of a target that all classes share",
                   fraction},
                  Key{"class_weights", Form::reals, no_default,
                      "one number for each class, or a table of them by the words or numbers of classes, 1 "
                      "where none stands; \"balanced\": n / (k count) for k classes with counts in the n "
                      "targets of the training data. The mean is that of the weights",
                      at_least(0)}
                      .or_one_of({"balanced"})
                      .of(by_class)},
         .example = "target = \"label\""},
    .metrics = {"accuracy", "perplexity", "f1", "auc", "balanced_accuracy"},
    .lower = lower,
};

}  // namespace gacc::frontend
