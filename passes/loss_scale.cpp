// Loss scaling. Half-precision gradients need it; in f32 the backward seed is 1, `update` has nothing to
// unscale, and the pass changes only the phase, so that there is one pipeline for all precisions.
#include "passes/pass.h"

namespace gacc::passes {

bool loss_scale(ir::Module& module, const Options&, Diag& diag) {
  const std::string compute = module.setting("precision.compute", "f32");
  if (compute != "f32") {
    diag.error(Kind::unsupported, {}, "precision.compute = \"{}\" is not supported yet; \"f32\" is", compute);
  }
  return !diag.failed();
}

}  // namespace gacc::passes
