// Writes composite ops in primitive ones, as their OpInfo::expand says. It passes the result's name
// on: %prob stays %prob, its parts are %prob.max, %prob.exp, ...
#include <utility>

#include "ir/builder.h"
#include "passes/analysis/rewrite.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

// One sweep over a region; true when something was expanded (the new ops may be composite themselves).
bool sweep(Module& module, Region& region, Diag& diag) {
  bool any = false;
  rewrite(region, [&](const Op& op, Replacements& replaced) {
    if (op.info->expand == nullptr) return true;
    any = true;
    Builder build = Builder(module, region, diag).like(op);
    build.when = op.when;
    build.keep_f32 = op.keep_f32;
    const std::vector<Operand> by = op.info->expand(build, op);
    for (size_t i = 0; i < op.results.size() && i < by.size(); ++i) replaced.set(op.results[i], by[i]);
    return false;
  });
  return any;
}

}  // namespace

bool expand(Module& module, const Options&, Diag& diag) {
  constexpr int kMostNestedComposites = 8;  // composites of composites; a cycle in the table would not end
  for (const RegionKind kind : all_regions) {
    for (int depth = 0; depth < kMostNestedComposites && sweep(module, module.region(kind), diag); ++depth) {
    }
  }
  return !diag.failed();
}

}  // namespace gacc::passes
