// Common subexpressions: an op that writes nothing and equals an earlier one (same op, operands and
// attributes, and no write in between to a buffer it reads) is replaced by it.
#include <algorithm>

#include "ir/kernel.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace gacc::passes {

namespace {

using namespace ir;

void merge(Region& region, size_t buffers) {
  Replacements replaced(region);
  std::vector<Op> kept;
  std::vector<size_t> written(buffers, 0);  // kept.size() at the last write to each buffer
  const auto still_true = [&](const Op& op, size_t made) {
    return std::all_of(op.operands.begin(), op.operands.end(), [&](const Operand& operand) {
      const std::optional<BufferId> buffer = root_buffer(region, operand);
      return !buffer || written[static_cast<size_t>(buffer->index)] <= made;
    });
  };
  const std::vector<Op> ops = region.ops;  // storage_root looks at region.ops, which stays whole meanwhile
  for (Op op : ops) {
    replaced.apply(op);
    if (op.info->writes == 0) {
      size_t earlier = 0;
      while (earlier < kept.size() &&
             !(kept[earlier].info == op.info && kept[earlier].operands == op.operands &&
               kept[earlier].attrs == op.attrs && still_true(op, earlier))) {
        ++earlier;
      }
      if (earlier < kept.size()) {
        for (size_t i = 0; i < op.results.size(); ++i) replaced.set(op.results[i], kept[earlier].results[i]);
        continue;
      }
    }
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (writes_operand(op, i))
        written[static_cast<size_t>(as_buffer(op.operands[i])->index)] = kept.size() + 1;
    }
    kept.push_back(std::move(op));
  }
  region.ops = std::move(kept);
  replaced.apply(region.yields);
  compact(region);
}

}  // namespace

bool cse(Module& module, const Options&, Diag&) {
  for (const RegionKind kind : all_regions) merge(module.region(kind), module.buffers.size());
  return true;
}

}  // namespace gacc::passes
