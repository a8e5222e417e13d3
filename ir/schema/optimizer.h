// The optimizers: optimizers.def names them, ir/schema/optimizers/ has a file for each family. An optimizer says its
// keys, the state that it keeps for a parameter, its bias terms, and the ops of one update of a parameter;
// the update itself (means, clipping, rates, finite tests) is built around that by passes/build_update.cpp.
#pragma once
#include <functional>

#include "ir/builder.h"
#include "ir/schema/key.h"

namespace gacc::ir {

// State for each parameter, named PARAMETER.suffix. It starts at zero.
struct OptimizerState {
  std::string_view suffix;                           // ".m"
  Shape (*shape)(const Shape& parameter) = nullptr;  // null: the parameter's
};

// c = 1 - beta^t, t counting the updates up to this one; kept from update to update as NAME.
struct BiasTerm {
  std::string_view name;  // "adam.c1"
  size_t beta;            // index into optimizer.betas
  bool launches = false;  // where the second moment is "micro": t counts launches
};

// One update of one parameter, for the optimizer's code.
struct OptimizerStep {
  Builder& build;
  std::string name;  // the parameter's, before the names of new values
  BufferId w;
  Operand g;                         // the mean gradient, clipped
  Operand rate;                      // of this parameter
  Operand updates;                   // before this one, i32
  std::vector<Operand> corrections;  // the bias terms
  // Only with the second moment "micro": the sum of the launches' squared mean gradients, and beta2^K.
  std::optional<Operand> squares{}, decay2{};
  std::function<BufferId(size_t)> state;  // by index, made when first asked for
  std::function<void(std::string_view, std::vector<Operand>)>
      update;                                       // an op that writes, if the window is good
  std::function<Attrs(std::string_view op)> attrs;  // what [optimizer] says of an op's attributes
  std::function<ValueId(std::string_view suffix, const Operand&)> norm_squared;  // NAME + suffix
};

struct Optimizer {
  TypeSchema schema;
  std::vector<OptimizerState> state{};
  std::vector<BiasTerm> corrections{};
  Attrs attrs{};  // of its ops, beside those that [optimizer] gives
  void (*step)(OptimizerStep& s);
};

namespace optimizers {
#define X(name) extern const Optimizer name;
#include "ir/schema/optimizers.def"
}  // namespace optimizers

const std::vector<const Optimizer*>& all_optimizers();   // in the order of optimizers.def
const Optimizer* find_optimizer(std::string_view name);  // null when there is none

// Keys that several optimizers have.
Key weight_decay_key(double fallback);
Key betas_key(double beta1, double beta2);
inline const Key eps_key{"eps", Form::real, 1e-8, "keeps the divisor above 0", at_least(0)};

}  // namespace gacc::ir
