// Dead code: an op whose results nobody reads and that writes no buffer goes, last to first.
#include "passes/pass.h"

namespace gacc::passes {

bool dce(ir::Module& module, const Options&, Diag&) {
  for (const ir::RegionKind kind : ir::all_regions) remove_dead(module.region(kind));
  return true;
}

}  // namespace gacc::passes
