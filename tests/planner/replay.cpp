// Slow and plain on purpose: the live bytes are summed anew at every operation.
#include "tests/planner/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace gacc::passes::planner {

Replay replay(const Graph& graph, const std::string& schedule) {
  Replay out;
  std::map<int64_t, int> number;
  for (size_t x = 0; x < graph.tensors.size(); ++x) number[graph.tensors[x].id] = static_cast<int>(x);
  std::set<int> live;
  int next = 0;  // first executions come in program order
  std::istringstream lines(schedule);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    int o = -1;
    std::string keyword;
    words >> o >> keyword;
    if (o < 0 || o >= graph.end() || keyword != "drop") {
      out.problem = "not a step: " + line;
      return out;
    }
    if (o > next) out.problem = fmt::format("operation {} runs before {}", o, next);
    if (o == next) ++next;
    for (const int x : graph.operation(o).inputs) {
      if (graph.tensor(x).producer >= 0 && live.count(x) == 0)
        out.problem = fmt::format("operation {} reads tensor {}, which is not there", o, graph.tensor(x).id);
    }
    for (const int x : graph.operation(o).outputs) live.insert(x);
    std::set<int> storages;
    for (const int x : live) storages.insert(graph.tensor(x).storage);
    int64_t bytes = 0;
    for (const int s : storages) bytes += graph.tensor(s).bytes;
    out.peak = std::max(out.peak, bytes);
    out.cost += graph.operation(o).cost;
    int64_t id = 0;
    while (words >> id) {
      if (number.count(id) == 0 || live.erase(number[id]) == 0)
        out.problem = fmt::format("tensor {} is dropped but not there", id);
    }
    if (!out.problem.empty()) return out;
  }
  if (next != graph.end()) out.problem = fmt::format("operation {} never runs", next);
  for (const int x : graph.operation(graph.end()).inputs) {
    if (graph.tensor(x).producer >= 0 && live.count(x) == 0)
      out.problem = fmt::format("tensor {} is not there at the end", graph.tensor(x).id);
  }
  return out;
}

}  // namespace gacc::passes::planner
