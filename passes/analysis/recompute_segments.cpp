// The policies that name segments: the frontend numbers them (recompute.policy all, sqrt; layers marked
// `recompute = true`).
#include <algorithm>

#include "passes/planner/simulate.h"
#include "passes/recompute.h"

namespace gacc::passes {

using namespace ir;

std::vector<planner::Step> segment_schedule(const Module& module, const StepGraph& step, int64_t& peak,
                                            double& seconds) {
  const Region& region = module.step;
  planner::RecomputePlan plan(step.graph);
  std::vector<int32_t> segment(step.graph.tensors.size(), -1);  // of a tensor, while it is inside one
  std::vector<int> last(step.graph.tensors.size(), -1);         // op: its last reader in the forward pass
  std::vector<int> tensor_of = step.tensor_of;                  // reshapes included
  for (size_t i = 0; i < region.ops.size(); ++i) {
    const Op& op = region.ops[i];
    if (op.info->lowering == Lowering::alias) {
      const ValueId* value = as_value(op.operands.front());
      if (value != nullptr) tensor_of[index(op.results.front())] = tensor_of[index(*value)];
      continue;
    }
    for (const Operand& operand : op.operands) {
      const ValueId* value = as_value(operand);
      const int x = value != nullptr ? tensor_of[index(*value)] : -1;
      if (x < 0 || !step.forward[i]) continue;
      last[x] = static_cast<int>(i);
      if (segment[x] != op.segment) segment[x] = -1;
    }
    for (const ValueId result : op.results) {
      const int x = tensor_of[index(result)];
      if (x >= 0) segment[x] = step.forward[i] ? op.segment : -1;
    }
  }
  std::vector<int> operation_of(region.ops.size(), -1);
  for (size_t o = 0; o < step.kernel_of.size(); ++o) {
    if (step.kernel_of[o] < 0) continue;
    for (const KernelMember& member : step.kernels()[step.kernel_of[o]].members)
      if (operation_of[member.op] < 0) operation_of[member.op] = static_cast<int>(o);
    for (const size_t i : step.parts[o]) operation_of[i] = static_cast<int>(o);
  }
  for (size_t x = 0; x < step.graph.tensors.size(); ++x) {
    const planner::Tensor& tensor = step.graph.tensors[x];
    // A segment's inputs stay until it has run again; values inside it until they have been made again.
    plan.held[x] = segment[x] < 0 ? 1 : 2;
    if (segment[x] < 0 || step.graph.once(static_cast<int>(x))) continue;
    const int from = last[x] >= 0 ? operation_of[last[x]] : tensor.producer;
    const auto next = std::ranges::upper_bound(tensor.uses, from);
    if (next == tensor.uses.end()) continue;
    plan.intervals[plan.first(static_cast<int>(x)) + static_cast<int>(next - tensor.uses.begin())] =
        planner::Interval::drop;
  }
  std::vector<planner::Step> schedule;
  const planner::Measure measure = planner::Simulator(step.graph).run(plan, &schedule);
  peak = measure.peak;
  seconds = measure.cost;
  return schedule;
}

}  // namespace gacc::passes
