// Separators by one sweep over the forward pass that counts what is read across each point.
#include "passes/planner/chain.h"

#include <algorithm>

namespace gacc::passes::planner {

Chain find_chain(const Graph& graph) {
  int marked = 0;  // the first operation that is said to be of the backward pass
  while (marked < graph.end() && !graph.operation(marked).backward) ++marked;
  Chain chain{.backward_begin = std::max(0, marked - 1)};
  // Between points o and o + 1 lies what was made up to o and is used after it.
  const auto backward_begin = static_cast<size_t>(chain.backward_begin);
  std::vector<int> crossing(backward_begin + 1, 0), separator(backward_begin + 1, -1);
  for (size_t x = 0; x < graph.tensors.size(); ++x) {
    const Tensor& tensor = graph.tensors[x];
    if (tensor.producer < 0 || tensor.producer >= chain.backward_begin || graph.once(static_cast<int>(x)))
      continue;
    int last = tensor.producer;
    for (const int use : tensor.uses)
      if (use <= chain.backward_begin) last = std::max(last, use);
    for (int o = tensor.producer; o < last; ++o) {
      ++crossing[o];
      separator[o] = static_cast<int>(x);
    }
  }
  for (int o = 0; o < chain.backward_begin; ++o) {
    const int x = separator[o];
    if (crossing[o] != 1 || (!chain.tensors.empty() && chain.tensors.back() == x)) continue;
    chain.tensors.push_back(x);
    chain.points.push_back(o);
  }
  return chain;
}

}  // namespace gacc::passes::planner
