// Plans for a chain of blocks with little memory: which tensors a block keeps for its backward pass, and
// which blocks run forward once more (or twice, ...) from a tensor that stands between two of them.
#pragma once
#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

// Plans for the budget, somewhat more and somewhat less: the chain is only a model of the program (its memory
// is counted in slots, transients by block), so the simulator has to judge them. Empty where the program is
// no chain of at least two blocks, or too long a one. The work is limited by the length of the chain and the
// choices of a block.
std::vector<Plan> block_plans(const Graph& graph, int64_t budget);

}  // namespace gacc::passes::planner
