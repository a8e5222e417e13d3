// See random_graph.h.
#include "tests/planner/random_graph.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace gacc::passes::planner {

Graph parsed(const std::string& text) {
  Graph graph;
  std::string problem;
  EXPECT_TRUE(parse_graph(text, graph, problem)) << problem;
  return graph;
}

std::string random_graph(std::mt19937& random, int operations, int most_tensors) {
  std::string text;
  std::vector<int> known = {0};  // 0 is a source
  int fresh = 1;
  std::vector<int> wanted;
  for (int o = 0; o < operations && fresh <= most_tensors; ++o) {
    std::string inputs;
    std::vector<int> chosen;
    const int count = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < count; ++i) {
      const size_t near = random() % 3 != 0 ? std::min<size_t>(known.size(), 3) : known.size();
      chosen.push_back(known[known.size() - 1 - random() % near]);
      inputs += fmt::format(" {}", chosen.back());
    }
    const bool view = random() % 6 == 0 && chosen[0] != 0;
    const int outputs = view ? 1 : 1 + static_cast<int>(random() % 5 == 0);
    text += fmt::format("OP {} {} op{} {}{} {}", view ? 0 : 1 + random() % 9, o > operations / 2 ? 1 : 0, o,
                        count, inputs, outputs);
    for (int i = 0; i < outputs; ++i) {
      text += fmt::format(" {} {} {}", fresh, view ? 0 : random() % 8, view ? chosen[0] : -1);
      known.push_back(fresh);
      if (random() % 8 == 0) wanted.push_back(fresh);
      ++fresh;
    }
    text += '\n';
  }
  wanted.push_back(fresh - 1);
  for (const int x : wanted) text += fmt::format("GET {} 1\n", x);
  return text;
}

void add_what_a_pass_says(std::mt19937& random, Graph& graph) {
  for (int o = 0; o < graph.end(); ++o) {
    Operation& op = graph.operations[static_cast<size_t>(o)];
    op.once = random() % 8 == 0;
    if (random() % 4 == 0) op.again = op.cost / 2;
    for (const int from : op.inputs) {
      for (const int to : op.outputs) {
        if (graph.tensor(from).producer < 0 || random() % 2 != 0) continue;
        if (graph.tensor(from).storage != from || graph.tensor(to).storage != to) continue;
        if (graph.tensor(from).bytes == graph.tensor(to).bytes) op.in_place.emplace_back(from, to);
      }
    }
  }
}

}  // namespace gacc::passes::planner
