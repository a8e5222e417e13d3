// Dead code: an op whose results nobody reads and that writes no buffer goes, last to first.
#include <algorithm>

#include "ir/op_info.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

void sweep(Region& region) {
  std::vector<bool> wanted(region.values.size(), false);
  const auto want = [&](const Operand& operand) {
    if (const ValueId* value = as_value(operand)) wanted[static_cast<size_t>(value->index)] = true;
  };
  for (const Yield& yield : region.yields) want(yield.what);
  std::vector<Op> kept;
  for (auto op = region.ops.rbegin(); op != region.ops.rend(); ++op) {
    const bool used = std::any_of(op->results.begin(), op->results.end(),
                                  [&](ValueId result) { return wanted[static_cast<size_t>(result.index)]; });
    if (!used && op->info->writes == 0) continue;
    std::for_each(op->operands.begin(), op->operands.end(), want);
    if (op->when) want(*op->when);
    kept.push_back(std::move(*op));
  }
  std::reverse(kept.begin(), kept.end());
  region.ops = std::move(kept);
  compact(region);
}

}  // namespace

bool dce(Module& module, const Options&, Diag&) {
  for (const RegionKind kind : all_regions) sweep(module.region(kind));
  return true;
}

}  // namespace gacc::passes
