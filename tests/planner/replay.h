// An independent judge of schedules: reads the text of a schedule and runs it, knowing nothing of the
// planner.
#pragma once
#include <cstdint>
#include <string>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

struct Replay {
  std::string problem{};  // empty: the schedule is sound
  int64_t peak = 0;
  double cost = 0;
};
Replay replay(const Graph& graph, const std::string& schedule);

}  // namespace gacc::passes::planner
