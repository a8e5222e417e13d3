// Adam and AdamW, which differ in where the weight decay goes.
#include "ir/schema/optimizer.h"

namespace gacc::ir {

namespace {

const Key second_moment =
    Key{"second_moment", Form::word, "window",
        "what v is made of: the square of the update's gradient, or the squares of its micro-batches' "
        "gradients"}
        .or_one_of({"window", "micro"})
        .unsaid();

const std::vector<OptimizerState> moments = {{".m"}, {".v"}};
const std::vector<BiasTerm> bias_terms = {{"adam.c1", 0}, {"adam.c2", 1, true}};

void step(OptimizerStep& s) {
  const BufferId m = s.state(0), v = s.state(1);
  const Operand &c1 = s.corrections[0], &c2 = s.corrections[1];
  if (s.squares)
    s.update("adam_micro", {s.w, m, v, s.g, *s.squares, s.rate, c1, c2, *s.decay2});
  else
    s.update("adam", {s.w, m, v, s.g, s.rate, c1, c2});
}

}  // namespace

const Optimizer optimizers::adam{
    .schema = {.name = "adam",
               .says = "g += weight_decay w; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; w "
                       "-= lr m' / (sqrt(v') + eps), m' and v' without their bias to 0.",
               .keys = {betas_key(0.9, 0.999), eps_key, weight_decay_key(0), second_moment},
               .example = "lr = 1e-3"},
    .state = moments,
    .corrections = bias_terms,
    .step = step,
};

const Optimizer optimizers::adamw{
    .schema = {.name = "adamw",
               .says = "As adam, but w *= 1 - lr weight_decay takes the place of the decay in g.",
               .keys = {betas_key(0.9, 0.999), eps_key, weight_decay_key(0.01), second_moment},
               .example = "lr = 3e-4\nweight_decay = 0.1"},
    .state = moments,
    .corrections = bias_terms,
    .attrs = {{"decoupled", true}},
    .step = step,
};

}  // namespace gacc::ir
