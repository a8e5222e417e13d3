// Writes a schedule of the recompute planner into the step, and takes it out again.
#pragma once
#include "passes/analysis/step_graph.h"
#include "passes/pass.h"

namespace gacc::passes {

// `step` is step_graph(module). Operations that the schedule runs again become clones: `%x.r`, a kernel of
// their own, right where the schedule has them; whoever reads %x from there on reads the clone. Clones keep
// their original's segment; where it has none, those that stand together get a new one.
ir::Module rematerialized(ir::Module module, const StepGraph& step,
                          const std::vector<planner::Step>& schedule);

// Joins clones to a kernel a little further down, where ir/kernel.h allows it and the step's values take no
// more memory then (join_clones.cpp): to one that reads them, where they are rounded as in the forward pass
// and need not be stored, or to one that reads what they read. So gelu, wanted by a weight's gradient, is made
// again by the kernel of gelu's gradient, and the weight's gradient comes after it.
void join_clones(ir::Module& module);

// The module without its clones: what it was before, in phase fused.
ir::Module without_clones(const ir::Module& module);

// Numbers the kernels from 0 in program order.
void renumber_kernels(ir::Region& region);

}  // namespace gacc::passes
