// Common subexpressions: an op that writes nothing and equals an earlier one (same op, operands and
// attributes, and no write in between to a buffer it reads) is replaced by it.
#include <algorithm>
#include <map>

#include "ir/op_info.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

bool equal(const Op& a, const Op& b) {
  return a.info == b.info && a.operands == b.operands && a.attrs == b.attrs && a.keep_f32 == b.keep_f32 &&
         a.remat == b.remat;
}

void merge(Region& region) {
  std::map<std::pair<std::string_view, int32_t>, std::vector<size_t>> by_first;  // of those that stay
  rewrite(region, [&](Op& op, Replacements& replaced) {
    const ValueId* first = op.operands.empty() ? nullptr : as_value(op.operands.front());
    std::vector<size_t>& alike = by_first[{op.info->name, first != nullptr ? first->index : -1}];
    const auto earlier = std::ranges::find_if(alike, [&](size_t i) { return equal(region.ops[i], op); });
    if (op.info->writes != 0 || earlier == alike.end()) {
      alike.push_back(region.ops.size());
      return true;
    }
    for (size_t i = 0; i < op.results.size(); ++i)
      replaced.set(op.results[i], region.ops[*earlier].results[i]);
    return false;
  });
}

}  // namespace

bool cse(Module& module, const Options&, Diag&) {
  for (const RegionKind kind : all_regions) merge(module.region(kind));
  return true;
}

}  // namespace gacc::passes
