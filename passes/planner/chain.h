// The chain of blocks in a program: where one tensor alone crosses from one part of the forward pass to the
// next.
#pragma once
#include <vector>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

// A separator is the one tensor of the forward pass that is read across a point of it: the output of a block.
struct Chain {
  // The first operation of the backward pass, to which the last one of the forward pass (a loss) counts.
  int backward_begin = 0;
  // Separators in order, each with the first operation behind which it crosses alone.
  std::vector<int> tensors{}, points{};
};
Chain find_chain(const Graph& graph);

}  // namespace gacc::passes::planner
