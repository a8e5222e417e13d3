// Chains of blocks: plans that keep what stands between blocks and make each block again in its turn.
#pragma once
#include <vector>

#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

// A separator is the one tensor of the forward pass that is read across a point of it: the output of a block.
struct Chain {
  int turn = 0;  // the first operation of the backward pass
  // Separators in order, each with the first operation behind which it crosses alone.
  std::vector<int> tensors{}, points{};
  std::vector<int> last{};  // by tensor of the forward pass: its last use there; else -1
};
Chain find_chain(const Graph& graph);

// Plans that keep every separator, every second, third, ... of them and drop all else between its last use in
// the forward pass and its first in the backward pass. Seeds for the search where no cut fits: deep budgets.
std::vector<Plan> chain_plans(const Graph& graph);

}  // namespace gacc::passes::planner
