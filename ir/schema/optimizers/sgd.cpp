#include "ir/schema/optimizer.h"

namespace gacc::ir {

// Without a momentum there is no state.
const Optimizer optimizers::sgd{
    .schema = {.name = "sgd",
               .says = "g += weight_decay w; m = momentum m + (1 - dampening) g, at the first update m = g; "
                       "w -= lr m, with nesterov w -= lr (g + momentum m).",
               .keys = {{"momentum", Form::real, 0.0, "the part of m that stays", below_one},
                        {"dampening", Form::real, 0.0, "the part of g that is left out of m", fraction},
                        {"nesterov", Form::flag, false, "look ahead; needs a momentum and no dampening"},
                        weight_decay_key(0)},
               .example = "lr = 0.1\nmomentum = 0.9"},
    .state = {{".m"}},
    .step =
        [](OptimizerStep& s) {
          if (s.build.module().settings.real("optimizer.momentum", 0) == 0)
            s.update("sgd", {s.w, s.g, s.rate});
          else
            s.update("sgd_momentum", {s.w, s.state(0), s.g, s.rate, s.updates});
        },
};

}  // namespace gacc::ir
