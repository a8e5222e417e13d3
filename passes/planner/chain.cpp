// Separators by one sweep over the forward pass that counts what is read across each point.
#include "passes/planner/chain.h"

#include <algorithm>

namespace gacc::passes::planner {

Chain find_chain(const Graph& graph) {
  Chain chain;
  int& turn = chain.turn;
  while (turn < graph.end() && !graph.operation(turn).backward) ++turn;
  // Between points o and o + 1 lies what was made up to o and is used after it.
  std::vector<int>& last = chain.last;
  last.assign(graph.tensors.size(), -1);
  std::vector<int> crossing(static_cast<size_t>(turn) + 1, 0), separator(static_cast<size_t>(turn) + 1, -1);
  for (size_t x = 0; x < graph.tensors.size(); ++x) {
    const Tensor& tensor = graph.tensors[x];
    if (tensor.producer < 0 || tensor.producer >= turn) continue;
    last[x] = tensor.producer;
    for (const int use : tensor.uses) {
      if (use < turn) last[x] = std::max(last[x], use);
    }
    if (graph.once(static_cast<int>(x))) continue;
    for (int o = tensor.producer; o < last[x]; ++o) {
      ++crossing[static_cast<size_t>(o)];
      separator[static_cast<size_t>(o)] = static_cast<int>(x);
    }
  }
  for (int o = 0; o < turn; ++o) {
    const int x = separator[static_cast<size_t>(o)];
    if (crossing[static_cast<size_t>(o)] != 1 || (!chain.tensors.empty() && chain.tensors.back() == x))
      continue;
    chain.tensors.push_back(x);
    chain.points.push_back(o);
  }
  return chain;
}

std::vector<Plan> chain_plans(const Graph& graph) {
  const Chain chain = find_chain(graph);
  const std::vector<int>& last = chain.last;
  std::vector<Plan> plans;
  for (size_t stride = 1; stride <= 16 && stride <= chain.tensors.size() + 1; ++stride) {
    std::vector<char> kept(graph.tensors.size(), 0);
    for (size_t i = stride - 1; i < chain.tensors.size(); i += stride)
      kept[static_cast<size_t>(chain.tensors[i])] = 1;
    Plan plan(graph);
    for (size_t x = 0; x < graph.tensors.size(); ++x) {
      const Tensor& tensor = graph.tensors[x];
      if (last[x] < 0 || kept[x] != 0 || graph.once(static_cast<int>(x))) continue;
      const auto next = std::upper_bound(tensor.uses.begin(), tensor.uses.end(), last[x]);
      if (next == tensor.uses.end()) continue;
      plan.gaps[static_cast<size_t>(plan.first(static_cast<int>(x)) +
                                    static_cast<int>(next - tensor.uses.begin()))] = Gap::drop;
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace gacc::passes::planner
