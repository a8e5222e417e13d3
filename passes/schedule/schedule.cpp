#include "passes/schedule/schedule.h"

#include "passes/pass.h"

namespace gacc::passes {

bool schedule(ir::Module& module, const std::string& target, Diag& diag) {
  Options options;
  options.target = target;
  for (const auto pass : {select, epilogues, levels, merge, persistent, streams, workspaces}) {
    if (!pass(module, options, diag)) return false;
    module.phase = ir::Phase::scheduled;
  }
  return true;
}

}  // namespace gacc::passes
