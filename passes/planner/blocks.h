// Plans for a chain of blocks with little memory: which tensors a block keeps for its backward pass, and
// which blocks pass once more (or twice, ...) from a tensor that stands between two of them.
#pragma once
#include <vector>

#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

// Plans for the budget, somewhat more and somewhat less. The bytes of a block alone are a model of what it
// takes in the program, so the simulator has to judge them; of a chain of single operations the model is exact.
// Empty where the program is no chain of at least two blocks, or nothing fits. Of a chain that is too long for
// the table every second, fourth, .. separator is taken.
std::vector<RecomputePlan> block_plans(const Graph& graph, int64_t budget);

}  // namespace gacc::passes::planner
