// Common subexpressions: an op that writes nothing and equals an earlier one (same op, operands and
// attributes, and no write in between to a buffer it reads) is replaced by it.
#include <algorithm>

#include "ir/op_info.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace gacc::passes {

namespace {

using namespace ir;

void merge(Region& region) {
  Replacements replaced(region);
  std::vector<Op> kept;
  for (Op& op : region.ops) {
    replaced.apply(op);
    const auto earlier = std::find_if(kept.begin(), kept.end(), [&](const Op& other) {
      return other.info == op.info && other.operands == op.operands && other.attrs == op.attrs &&
             other.full == op.full && other.remat == op.remat;
    });
    if (op.info->writes != 0 || earlier == kept.end()) {
      kept.push_back(std::move(op));
      continue;
    }
    for (size_t i = 0; i < op.results.size(); ++i) replaced.set(op.results[i], earlier->results[i]);
  }
  region.ops = std::move(kept);
  replaced.apply(region.yields);
  compact(region);
}

}  // namespace

bool cse(Module& module, const Options&, Diag&) {
  for (const RegionKind kind : all_regions) merge(module.region(kind));
  return true;
}

}  // namespace gacc::passes
