// The optimal schedule of a tiny graph, by A* over (first executions done, live tensors). gacc-plan asks for it,
// and the tests of the search: graphs of compiled models are larger.
#pragma once
#include <cstdint>
#include <vector>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

struct Exact {
  enum class Outcome : uint8_t { optimal, infeasible, gave_up } outcome = Outcome::gave_up;
  double cost = 0;
  int64_t peak = 0;
  std::vector<Step> schedule{};
};

// At most this many tensors that something makes.
inline constexpr int kExactTensors = 24;
Exact solve_exactly(const Graph& graph, int64_t budget, int64_t most_states);

}  // namespace gacc::passes::planner
