// The usual practice, to compare with: a minimum cut of the forward graph chooses which values are saved for
// the backward pass, and below what that cut takes, a knapsack over the expensive operations. Written from
// its description (../shared/notes/checkpointing.md, 2.1); docs/memory.md has what came of it.
#pragma once
#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

// The partitioner knows more of a program than a graph's file says.
struct Practice {
  const Graph& graph;
  // By operation: matrix products, which do not fuse with others and are expensive to run again. All others
  // are taken to fuse with each other.
  std::vector<char> product{};
};

// By storage: whether its bytes are saved for the backward pass. `budget` is a fraction: 1 is what the cut
// saves that runs nothing expensive again, 0 only what the step starts from.
std::vector<char> saved_values(const Practice& practice, double budget);

// What is saved lives from its making on, the rest is made again where the backward pass first reads it, with
// all that is missing for that, and stays until its last use.
RecomputePlan plan_of(const Graph& graph, const std::vector<char>& saved);

}  // namespace gacc::passes::planner
