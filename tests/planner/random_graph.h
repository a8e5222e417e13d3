// Programs for the tests of the recompute planner.
#pragma once
#include <random>
#include <string>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

// The graph of a text that has no mistake.
Graph parsed(const std::string& text);

// A random program: several outputs, aliases, a source, wanted tensors.
std::string random_graph(std::mt19937& random, int operations, int most_tensors);

// What a file does not say, at random: operations that run once, other costs of running again, results in
// place of operands.
void add_what_a_pass_says(std::mt19937& random, Graph& graph);

}  // namespace gacc::passes::planner
