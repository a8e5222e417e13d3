#include "ir/schema/optimizer.h"

namespace gacc::ir {

const Optimizer optimizers::lamb{
    .schema = {.name = "lamb",
               .says = "r = adam's m' / (sqrt(v') + eps) + weight_decay w; w -= lr (|w| / |r|) r, the ratio "
                       "1 where a norm is 0.",
               .keys = {betas_key(0.9, 0.999), eps_key, weight_decay_key(0)},
               .example = "lr = 2e-3"},
    .state = {{".m"}, {".v"}},
    .corrections = {{"lamb.c1", 0}, {"lamb.c2", 1}},
    .step =
        [](OptimizerStep& s) {
          const BufferId m = s.state(0), v = s.state(1);
          const Operand &c1 = s.corrections[0], &c2 = s.corrections[1];
          const ValueId r = s.build.make("lamb.direction", s.name + ".r", {s.w, m, v, s.g, c1, c2},
                                         s.attrs("lamb.direction"));
          const ValueId ratio =
              s.build.make("trust_ratio", s.name + ".ratio",
                           {s.norm_squared(".w.norm2", s.w), s.norm_squared(".r.norm2", r)});
          const ValueId step = s.build.make("mul", s.name + ".step", {s.rate, ratio});
          s.update("lamb", {s.w, m, v, s.g, step, c1, c2});
        },
};

}  // namespace gacc::ir
