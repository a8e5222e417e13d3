#include "ir/schema/optimizer.h"

namespace gacc::ir {

const std::vector<const Optimizer*>& all_optimizers() {
  static const std::vector<const Optimizer*> all = {
#define X(name) &optimizers::name,
#include "ir/schema/optimizers.def"
  };
  return all;
}

const Optimizer* find_optimizer(std::string_view name) {
  for (const Optimizer* optimizer : all_optimizers())
    if (optimizer->schema.name == name) return optimizer;
  return nullptr;
}

Key weight_decay_key(double fallback) {
  return {"weight_decay", Form::real, fallback, "how strongly parameters are pulled to 0", at_least(0)};
}

Key betas_key(double beta1, double beta2) {
  return {"betas", Form::reals, std::vector{beta1, beta2}, "two decay rates", below_one, {}, 2};
}

}  // namespace gacc::ir
