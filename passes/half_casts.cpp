// Casts to half precision, where the op table's Precision asks for them. With f32 there are none, and the
// pass changes only the phase, so that there is one pipeline for all precisions.
#include "passes/pass.h"

namespace gacc::passes {

bool half_casts(ir::Module& module, const Options&, Diag& diag) {
  const std::string compute = module.setting("precision.compute", "f32");
  if (compute != "f32") {
    diag.error(Kind::unsupported, {}, "precision.compute = \"{}\" is not supported yet; \"f32\" is", compute);
  }
  return !diag.failed();
}

}  // namespace gacc::passes
