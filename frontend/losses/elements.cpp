// Losses of each element: output and target have the same shape.
#include "frontend/loss.h"

namespace gacc::frontend {

namespace {

const Words differences = {"mae", "rmse", "r2"};

// With p for positives: (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)), which is bce(x, t) + (p - 1) t bce(x,
// 1).
ir::ValueId binary(LossContext& l, const ir::Operand& x, const ir::Operand& wanted) {
  const std::vector<double> weights = l.keys.reals("pos_weight");
  if (weights.empty()) return l.b.make("bce_with_logits", "loss.each", {x, wanted});
  const ir::Shape shape = l.b.type(x).shape;
  if (weights.size() > 1) l.need_weights("pos_weight", shape.size() < 2 ? 1 : shape.back());
  const ir::Operand weight = weights.size() == 1
                                 ? ir::Operand(weights.front())
                                 : l.given("loss.pos_weight", weights, l.keys.at("pos_weight"));
  const ir::ValueId plain = l.b.make("bce_with_logits", "loss.plain", {x, wanted});
  const ir::ValueId positive = l.b.make("bce_with_logits", "loss.positive", {x, 1.0});
  const ir::ValueId weighted = l.b.make("mul", "loss.weighted", {wanted, weight});
  const ir::ValueId more = l.b.make("sub", "loss.more", {weighted, wanted});
  const ir::ValueId extra = l.b.make("mul", "loss.extra", {positive, more});
  return l.b.make("add", "loss.each", {plain, extra});
}

ir::ValueId huber_of(LossContext& l, const ir::Operand& x, const ir::Operand& wanted) {
  const ir::ValueId difference = l.b.make("sub", "loss.difference", {x, wanted});
  return l.b.make("huber", "loss.each", {difference}, l.attrs_of("huber"));
}

// The op of output and target.
template <const char* op>
void lower_op(LossContext& l) {
  l.elements([](LossContext& l, const ir::Operand& x, const ir::Operand& wanted) {
    return l.b.make(op, "loss.each", {x, wanted});
  });
}
constexpr char squared_error[] = "squared_error", absolute_error[] = "absolute_error";

}  // namespace

const LossType losses::mse{
    .schema = {.name = "mse", .says = "(x - target)^2.", .example = "target = \"y\""},
    .metrics = differences,
    .lower = lower_op<squared_error>,
};

const LossType losses::l1{
    .schema = {.name = "l1", .says = "|x - target|.", .example = "target = \"y\""},
    .metrics = differences,
    .lower = lower_op<absolute_error>,
};

const LossType losses::huber{
    .schema = {.name = "huber",
               .says = "d^2 / 2 where d = |x - target| is below delta, else delta (d - delta / 2).",
               .keys = {{"delta", Form::real, 1.0, "where it becomes linear", above(0)}},
               .example = "target = \"y\""},
    .metrics = differences,
    .lower = [](LossContext& l) { l.elements(huber_of); },
};

const LossType losses::bce_with_logits{
    .schema = {.name = "bce_with_logits",
               .says = "-t log sigmoid(x) - (1 - t) log(1 - sigmoid(x)), t the target, 0 to 1.",
               .keys = {{"pos_weight", Form::real_or_reals, no_default,
                         "what the part of positive targets is multiplied by; one number, or one for each "
                         "element of the last axis",
                         at_least(0)}},
               .example = "target = \"y\""},
    .metrics = {"accuracy", "f1", "auc", "balanced_accuracy"},
    .lower = [](LossContext& l) { l.elements(binary); },
};

}  // namespace gacc::frontend
