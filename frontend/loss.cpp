// Losses as PyTorch defines them, with reduction "sum": the division by the count of the whole window is
// update's.
#include "frontend/loss.h"

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
    const auto results = b_.make_n(
        "cross_entropy", {"loss.rows", "loss.max", "loss.log", "loss.counted"}, {*logits.value, wanted},
        {{"ignore_index", loss_.ignore_index}, {"label_smoothing", loss_.label_smoothing}});
    const ir::ValueId counted = results[3];
    sum(results[0], counted);
    if (!metrics) return;
    for (const Named& metric : model_.metrics) {
      if (metric.name == "perplexity") continue;  // exp(mean loss): the runtime's
      // accuracy: the first largest class is the target
      b_.location = metric.at;
      const ir::ValueId best = b_.make("row_argmax", "accuracy.best", {*logits.value});
      const ir::ValueId hit = b_.make("equal", "accuracy.hit", {best, wanted});
      const ir::ValueId right = b_.make("mul", "accuracy.right", {hit, counted});
      const ir::ValueId real = b_.make("cast", "accuracy.real", {right});
      b_.yield({.role = "metric",
                .metric = metric.name,
                .of = {},
                .what = b_.make("total_sum", "accuracy", {real})});
    }
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

  // mse, l1, bce_with_logits: output and target have the same elements.
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
    for (const Named& metric : model_.metrics) {
      if (metrics) continue;  // said once, for step
      diag_.error(Kind::conflict, metric.at, "metric \"{}\" needs classes; the loss is {}", metric.name,
                  loss_.type);
    }
    ir::Operand wanted = reshaped(target, loss_.target.name + ".shaped", shape);
    if (type(target).dtype != ir::DType::f32) wanted = b_.make("cast", loss_.target.name + ".real", {wanted});
    const std::string_view op = loss_.type == "mse"  ? "squared_error"
                                : loss_.type == "l1" ? "absolute_error"
                                                     : "bce_with_logits";
    const ir::ValueId each = b_.make(op, "loss.each", {*output.value, wanted});
    const ir::ValueId ones = b_.make("ones_like", "loss.ones", {each});
    sum(each, ones);
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
