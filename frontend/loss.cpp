// Losses as PyTorch defines them, with reduction "sum": the division by the count of the whole window is
// update's.
#include "frontend/loss.h"

#include <algorithm>
#include <cmath>

#include "frontend/schema.h"

namespace gacc::frontend {

namespace {

class LossLowering {
 public:
  LossLowering(ir::Builder& b, const LayerLowering& layers, const ModelFile& model)
      : b_(b), layers_(layers), model_(model), loss_(model.loss), diag_(b.diag()) {}

  void run(Flow output, bool metrics) {
    const Flow* target = find_target();
    if (loss_.input) output = layers_.find_output(*loss_.input).value_or(Flow{});
    if (!loss_.sound || target == nullptr || !target->value || !output.value) return;
    b_.location = loss_.at;
    if (type(output).dtype != ir::DType::f32) {
      diag_.error(Kind::type_mismatch, loss_.at, "the loss takes f32, {} is i32", output.label)
          .note(output.at, output.defined_here());
      return;
    }
    if (loss_.type == "cross_entropy")
      classes(output, *target, metrics);
    else
      elements(output, *target, metrics);
  }

 private:
  const ir::Type& type(const Flow& flow) const { return b_.region()[*flow.value].type; }

  const Flow* find_target() const {
    if (!loss_.sound) return nullptr;
    if (const Flow* found = layers_.input(loss_.target.name)) return found;
    std::vector<std::string_view> known;
    for (const InputSpec& input : model_.inputs) known.push_back(input.name);
    diag_.error(Kind::unknown_name, loss_.target.at, "there is no input `{}`{}", loss_.target.name,
                did_you_mean(loss_.target.name, known));
    return nullptr;
  }

  // Whether all metrics fit the loss; said once, for step.
  bool metrics_fit(bool metrics) {
    bool fit = true;
    for (const Named& metric : model_.metrics) {
      const auto& known = known_metrics();
      const auto spec = std::find_if(known.begin(), known.end(),
                                     [&](const MetricSpec& each) { return each.name == metric.name; });
      if (std::find(spec->losses.begin(), spec->losses.end(), loss_.type) != spec->losses.end()) continue;
      fit = false;
      if (!metrics)
        diag_.error(Kind::conflict, metric.at, "metric \"{}\" is for {}; the loss is {}", metric.name,
                    list_words(spec->losses), loss_.type);
    }
    return fit;
  }

  // What a metric adds up; the runtime makes the metric of it.
  void add_metric(const std::string& name, ir::Operand each) {
    if (ir::is_float(b_.type(each).dtype) == false) each = b_.make("cast", name + ".real", {each});
    b_.yield({.role = "metric", .metric = name, .of = {}, .what = b_.make("total_sum", name, {each})});
  }

  // f32 state that the runtime fills with the setting of its name before `init`.
  ir::BufferId table(const std::string& name, const std::vector<double>& values) {
    b_.module().settings[name] = values;
    if (const auto found = b_.module().find_buffer(name)) return *found;
    return b_.module().add_buffer({.name = name,
                                   .role = ir::BufferRole::given,
                                   .type = {ir::DType::f32, {static_cast<int64_t>(values.size())}},
                                   .offset = {},
                                   .at = loss_.weights_at});
  }

  // One weight for each class or column, or none at all.
  bool weights_fit(const std::vector<double>& weights, const char* key, const Flow& logits, int64_t columns) {
    if (weights.empty() || static_cast<int64_t>(weights.size()) == columns) return true;
    diag_
        .error(Kind::shape_mismatch, loss_.weights_at, "`loss.{}` has {} numbers, {} gives {}", key,
               weights.size(), logits.label, columns)
        .note(logits.at, logits.defined_here());
    return false;
  }

  void sum(ir::ValueId each, ir::ValueId counted) {
    const ir::ValueId loss = b_.make("total_sum", "loss", {each});
    const ir::ValueId count = b_.make("total_sum", "count", {counted});
    b_.yield({.role = "loss", .metric = {}, .of = {}, .what = loss});
    b_.yield({.role = "count", .metric = {}, .of = {}, .what = count});
  }

  ir::Operand reshaped(const Flow& target, std::string name, const ir::Shape& shape) {
    if (type(target).shape == shape) return *target.value;
    return b_.make("reshape", std::move(name), {*target.value}, {{"shape", shape}});
  }

  // The count of a window is an i32.
  bool countable(int64_t per_sample) {
    const auto window = ir::checked_mul(model_.micro_batch, model_.accumulate);
    const auto total = window ? ir::checked_mul(*window, per_sample) : std::nullopt;
    if (total && *total < int64_t{1} << 31) return true;
    diag_.error(Kind::out_of_range, model_.micro_batch_at,
                "an update counts more than 2^31 elements: {} samples x {} launches x {} per sample",
                model_.micro_batch, model_.accumulate, per_sample);
    return false;
  }

  // logits [B, .., C], target i32 [B, ..], read as [B, .., 1]
  void classes(const Flow& logits, const Flow& target, bool metrics) {
    const ir::Shape shape = type(logits).shape;
    if (shape.size() < 2) {
      diag_
          .error(Kind::shape_mismatch, loss_.at,
                 "cross_entropy needs classes on the last axis, {} is one number per sample", logits.label)
          .note(logits.at, logits.defined_here());
      return;
    }
    if (type(target).dtype != ir::DType::i32) {
      diag_
          .error(Kind::type_mismatch, loss_.target.at, "cross_entropy takes class numbers, {} is f32",
                 target.label)
          .note(target.at, "give it dtype = \"i32\"");
      return;
    }
    ir::Shape rows = shape;
    rows.back() = 1;
    if (ir::elements(rows, 1) != ir::elements(type(target).shape, 1)) {
      diag_
          .error(Kind::shape_mismatch, loss_.target.at,
                 "cross_entropy needs a target {} per sample, {} has {}",
                 ir::shape_text(ir::Shape(shape.begin() + 1, shape.end() - 1)), target.label,
                 layers_.shape_of(target))
          .note(logits.at, fmt::format("{} gives {}, classes last", logits.label, layers_.shape_of(logits)));
      return;
    }
    if (!countable(ir::elements(rows, 1)) || !set_range(logits, shape.back())) return;

    const ir::Operand wanted = reshaped(target, loss_.target.name + ".rows", rows);
    if (!weights_fit(loss_.class_weights, "class_weights", logits, shape.back())) return;
    const bool weighted = !loss_.class_weights.empty();
    std::vector<ir::Operand> operands = {*logits.value, wanted};
    std::vector<std::string> names = {"loss.rows", "loss.max", "loss.log", "loss.counted"};
    if (weighted) {
      operands.emplace_back(table("loss.class_weights", scaled(loss_.class_weights)));
      names.insert(names.end(), {"loss.weights", "loss.mass"});
    }
    const auto results = b_.make_n(
        weighted ? "weighted_cross_entropy" : "cross_entropy", std::move(names), std::move(operands),
        {{"ignore_index", loss_.ignore_index}, {"label_smoothing", loss_.label_smoothing}});
    const ir::ValueId counted = results[3];
    sum(results[0], counted);
    if (weighted)
      b_.yield(
          {.role = "weights", .metric = {}, .of = {}, .what = b_.make("total_sum", "weight", {results[4]})});
    if (!metrics_fit(metrics) || !metrics) return;
    for (const Named& metric : model_.metrics) {
      if (metric.name == "perplexity") continue;  // exp(mean loss): the runtime's
      // accuracy: the first largest class is the target
      b_.location = metric.at;
      const ir::ValueId best = b_.make("row_argmax", "accuracy.best", {*logits.value});
      const ir::ValueId hit = b_.make("equal", "accuracy.hit", {best, wanted});
      add_metric(metric.name, b_.make("mul", "accuracy.right", {hit, counted}));
    }
  }

  // A mean does not depend on the scale of its weights; a power of two changes no bit of it. The largest
  // becomes 1 to 2, so that gradients in half precision have the range that they have without weights.
  static std::vector<double> scaled(std::vector<double> weights) {
    int exponent = 0;
    std::frexp(*std::max_element(weights.begin(), weights.end()), &exponent);
    for (double& weight : weights) weight = std::ldexp(weight, 1 - exponent);
    return weights;
  }

  // The runtime refuses labels that are no class: the range of the target, which is C unless the file says
  // less.
  bool set_range(const Flow& logits, int64_t classes) {
    const std::string prefix = fmt::format("inputs.{}.", loss_.target.name);
    for (const InputSpec& input : model_.inputs) {
      if (input.name != loss_.target.name || !input.range || *input.range <= classes) continue;
      diag_
          .error(Kind::shape_mismatch, input.range_at, "input `{}` has {} classes, {} gives {}", input.name,
                 *input.range, logits.label, classes)
          .note(logits.at, logits.defined_here());
      return false;
    }
    ir::Attrs& settings = b_.module().settings;
    const std::optional<int64_t> rows = layers_.rows_of(loss_.target.name);
    ir::Attr& range = settings.emplace(prefix + "range", classes).first->second;
    if (std::get<int64_t>(range) > classes) range = classes;  // that of a larger embedding
    // A target that also chooses an embedding's vectors must be one of them: then nothing else may be
    // ignored.
    if (!rows || (loss_.ignore_index >= 0 && loss_.ignore_index < *rows))
      settings[prefix + "ignore_index"] = loss_.ignore_index;
    return true;
  }

  // mse, l1, huber, bce_with_logits: output and target have the same elements.
  void elements(const Flow& output, const Flow& target, bool metrics) {
    const ir::Shape shape = type(output).shape;
    if (ir::elements(shape, 1) != ir::elements(type(target).shape, 1)) {
      diag_
          .error(Kind::shape_mismatch, loss_.target.at,
                 "{} needs as many targets as outputs: {} has {}, {} gives {}", loss_.type, target.label,
                 layers_.shape_of(target), output.label, layers_.shape_of(output))
          .note(output.at, output.defined_here());
      return;
    }
    if (!countable(ir::elements(shape, 1))) return;
    if (!metrics_fit(metrics)) return;
    ir::Operand wanted = reshaped(target, loss_.target.name + ".shaped", shape);
    if (type(target).dtype != ir::DType::f32) wanted = b_.make("cast", loss_.target.name + ".real", {wanted});
    const ir::Operand x = *output.value;
    const int64_t columns = shape.size() < 2 ? 1 : shape.back();
    if (loss_.pos_weight.size() > 1 && !weights_fit(loss_.pos_weight, "pos_weight", output, columns)) return;
    const ir::ValueId each = loss_.type == "mse"     ? b_.make("squared_error", "loss.each", {x, wanted})
                             : loss_.type == "l1"    ? b_.make("absolute_error", "loss.each", {x, wanted})
                             : loss_.type == "huber" ? huber(x, wanted)
                                                     : binary(x, wanted);
    const ir::ValueId ones = b_.make("ones_like", "loss.ones", {each});
    sum(each, ones);
    if (!metrics) return;
    for (const Named& metric : model_.metrics) {
      b_.location = metric.at;
      measure(metric.name, x, wanted);
    }
  }

  ir::ValueId huber(const ir::Operand& x, const ir::Operand& wanted) {
    const ir::ValueId difference = b_.make("sub", "loss.difference", {x, wanted});
    return b_.make("huber", "loss.each", {difference}, {{"delta", loss_.delta}});
  }

  // With p for positives: (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)), which is bce(x, t) + (p - 1) t bce(x,
  // 1).
  ir::ValueId binary(const ir::Operand& x, const ir::Operand& wanted) {
    const std::vector<double>& weights = loss_.pos_weight;
    if (weights.empty()) return b_.make("bce_with_logits", "loss.each", {x, wanted});
    const ir::Operand weight =
        weights.size() == 1 ? ir::Operand(weights.front()) : table("loss.pos_weight", weights);
    const ir::ValueId plain = b_.make("bce_with_logits", "loss.plain", {x, wanted});
    const ir::ValueId positive = b_.make("bce_with_logits", "loss.positive", {x, 1.0});
    const ir::ValueId weighted = b_.make("mul", "loss.weighted", {wanted, weight});
    const ir::ValueId more = b_.make("sub", "loss.more", {weighted, wanted});
    const ir::ValueId extra = b_.make("mul", "loss.extra", {positive, more});
    return b_.make("add", "loss.each", {plain, extra});
  }

  // Sums over all elements (runtime/metrics.h makes the metrics of them).
  void measure(const std::string& metric, const ir::Operand& x, const ir::Operand& wanted) {
    const auto each = [&](std::string_view op, const char* name, const ir::Operand& a, const ir::Operand& b) {
      return b_.make(op, metric + name, {a, b});
    };
    if (metric == "accuracy") {  // the logit says what the target does; NaN says nothing
      const ir::ValueId said = each("greater", ".said", x, 0.0),
                        meant = each("greater", ".meant", wanted, 0.5);
      const ir::ValueId hit = each("equal", ".hit", said, meant), number = each("equal", ".number", x, x);
      add_metric(metric, each("mul", ".right", hit, number));
    } else {
      add_metric(metric, each(metric == "mae" ? "absolute_error" : "squared_error", ".each", x, wanted));
    }
    if (metric != "r2") return;
    // Targets less a number near their mean, which the runtime sets: their squares keep the digits.
    const ir::BufferId shift = b_.module().named(ir::Named::r2_shift);
    const ir::ValueId shifted = each("sub", ".shifted", wanted, shift);
    add_metric("r2.targets", shifted);
    add_metric("r2.squares", b_.make("square", "r2.square", {shifted}));
  }

  ir::Builder& b_;
  const LayerLowering& layers_;
  const ModelFile& model_;
  const LossSpec& loss_;
  Diag& diag_;
};

}  // namespace

void lower_loss(ir::Builder& b, const LayerLowering& layers, const ModelFile& model, Flow output,
                bool metrics) {
  LossLowering(b, layers, model).run(std::move(output), metrics);
}

}  // namespace gacc::frontend
