// The step as the recompute planner sees it: kernels are operations, values that own bytes are tensors.
#pragma once
#include <string_view>

#include "ir/region_facts.h"
#include "passes/planner/graph.h"

namespace gacc::passes {

// Operation 0 stands for the micro-batch: it makes the inputs, costs nothing and never runs again. Then come
// one or two operations for every kernel that is launched, in program order, and the end. Tensors are rounded
// to the arena's alignment, at the full micro-batch.
struct StepGraph {
  planner::Graph graph;
  ir::Facts facts;                         // of the step
  std::vector<int> kernel_of;              // by operation; -1 for the micro-batch and the end
  std::vector<ir::ValueId> value_of;       // by tensor
  std::vector<int> tensor_of;              // by value: of what owns its bytes; -1: none, or a buffer's
  std::vector<std::vector<size_t>> parts;  // by operation: the ops that running it again repeats, ascending
  std::vector<bool> forward;               // by op of the step: the loss, the count or a state depends on it
  int64_t fixed_bytes = 0;                 // buffers, which always live
  int64_t other_bytes = 0;                 // the most that another region needs at once beside them
  ir::RegionKind other = ir::RegionKind::update;  // that region
  int64_t arena_bytes = 0;                        // that no plan of the module as it is has less than
  double seconds = 0;                             // of all kernels, once
  int64_t ahead_bytes = 0;                        // of weights from the host that are better fetched early

  const std::vector<ir::Kernel>& kernels() const { return facts->kernels; }  // aliases included
};

// The module is in phase fused. `backward` of an operation: the loss does not depend on it.
// Costs are the seconds that kernels/ estimates for launches on `target`. A weight from the host costs what of its copy
// the kernels do not cover, if all that are fetched are fetched twice and that is spread evenly.
StepGraph step_graph(const ir::Module& module, std::string_view target);

// The graph in the form that gacc-plan reads; costs of running an operation again, in microseconds. Inputs of
// the step cost no bytes there, and bytes that are shared in place count twice, so peaks are a little above
// the plan's.
std::string print_graph(const StepGraph& step);

}  // namespace gacc::passes
