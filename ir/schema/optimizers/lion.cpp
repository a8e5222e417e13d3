#include "ir/schema/optimizer.h"

namespace gacc::ir {

const Optimizer optimizers::lion{
    .schema =
        {.name = "lion",
         .says =
             "w *= 1 - lr weight_decay; w -= lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g.",
         .keys = {betas_key(0.9, 0.99), weight_decay_key(0)},
         .example = "lr = 1e-4"},
    .state = {{".m"}},
    .step =
        [](OptimizerStep& s) {
          s.update("lion", {s.w, s.state(0), s.g, s.rate});
        },
};

}  // namespace gacc::ir
