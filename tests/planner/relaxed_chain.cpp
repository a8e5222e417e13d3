#include "tests/planner/relaxed_chain.h"

#include <algorithm>
#include <limits>

#include "passes/planner/blocks.h"

namespace gacc::passes::planner {

namespace {

// Operations from the first on that read the one tensor of the operation before and make one that has bytes
// of its own; the last of them begins the backward pass. 0: there is no such chain.
int single_loss(const Graph& graph) {
  int o = 0;
  for (int before = -1; o < graph.end(); ++o) {
    const Operation& op = graph.operation(o);
    if (made_inputs(graph, o) != (o == 0 ? std::vector<int>{} : std::vector{before})) break;
    if (op.outputs.size() != 1 || op.once || !op.in_place.empty()) break;
    before = op.outputs.front();
    if (graph.tensor(before).storage != before) break;
  }
  return std::max(0, o - 1);
}

// The backward pass: what its operations read and hand on.
class Backward {
 public:
  Backward(const Graph& graph, int backward_begin) : graph_(graph), backward_begin_(backward_begin) {
    crossing_.resize(graph.operations.size());
    for (size_t x = 0; x < graph.tensors.size(); ++x) {
      const Tensor& tensor = graph.tensors[x];
      if (tensor.producer < backward_begin || tensor.uses.empty()) continue;
      for (int q = tensor.producer; q < tensor.uses.back(); ++q) {
        std::vector<int>& list = crossing_[q];
        if (list.size() < 2) list.push_back(static_cast<int>(x));
      }
    }
    for (int q = 0; q < graph.end(); ++q) {
      Range read;
      for (const int x : made_inputs(graph, q)) {
        const int producer = graph.tensor(x).producer;
        if (producer < backward_begin) read = {std::min(read.from, producer), std::max(read.to, producer)};
      }
      read_.push_back(read);
    }
  }

  // Whether the operation reads none of the forward pass.
  bool apart(int q) const { return read(q).to < 0; }

  // Whether the others read it in falling order: one tensor or two neighbours, neither later than what the
  // one before reads.
  bool falls() const {
    Range last{backward_begin_, backward_begin_};
    for (int q = backward_begin_; q < graph_.end(); ++q) {
      if (apart(q)) continue;
      if (read(q).from > last.from || read(q).to > last.to || read(q).to > read(q).from + 1) return false;
      last = read(q);
    }
    return true;
  }

  // Whether passes can wait (step 3 of A): only the last operations read nothing of the forward pass, and
  // where one reads the later of the two tensors that a next one reads, the gradients do not grow.
  bool steady() const {
    bool grew = false;
    for (int q = backward_begin_ + 1; q < graph_.end(); ++q) {
      if (apart(q - 1) && !apart(q)) return false;
      if (read(q).to != read(q - 1).to) grew = false;
      if (grew && read(q).from < read(q).to) return false;
      grew = grew || bytes(q) > bytes(q - 1);
    }
    return true;
  }

  // Whether the operation hands on the gradient that it finds.
  bool hands_on(int q) const { return !after(q).empty() && after(q) == after(q - 1); }

  // Whether one gradient at a time crosses, and what is beside can run with the next operation that reads it.
  bool one_gradient() const {
    for (int q = backward_begin_; q < graph_.end(); ++q) {
      const std::vector<int> here = made_inputs(graph_, q);
      if (after(q).size() > 1) return false;
      if (hands_on(q)) {
        const std::vector<int> next = made_inputs(graph_, q + 1);
        if (!within(here, next) || !within(after(q), next)) return false;
      } else if (!after(q).empty() && !within(after(q - 1), here)) {
        return false;
      }
    }
    return true;
  }

 private:
  // Of operations of the forward pass: the makers of what one of the backward pass reads.
  struct Range {
    int from = std::numeric_limits<int>::max(), to = -1;
  };
  const Range& read(int q) const { return read_[q]; }
  // The gradients made up to q that later operations read, two of them at most.
  const std::vector<int>& after(int q) const { return crossing_[q]; }
  int64_t bytes(int q) const {
    int64_t sum = 0;
    for (const int x : after(q)) sum += graph_.tensor(x).bytes;
    return sum;
  }
  static bool within(const std::vector<int>& some, const std::vector<int>& all) {
    return std::ranges::all_of(some, [&](int x) { return std::ranges::find(all, x) != all.end(); });
  }

  const Graph& graph_;
  int backward_begin_;
  std::vector<Range> read_;  // by operation, like the next
  std::vector<std::vector<int>> crossing_;
};

}  // namespace

std::optional<Chain> single_chain(const Graph& graph) {
  int marked = 0;  // the first operation that is said to be of the backward pass
  while (marked < graph.end() && !graph.operation(marked).backward) ++marked;
  const int single = single_loss(graph);
  // A loss, or the loss and what it makes for the backward pass, may not be marked.
  if (single <= 1 || (marked > single + 2 && marked != graph.end())) return std::nullopt;
  return find_chain(graph, single);
}

Graph relaxed_chain(const Graph& graph, const Chain& chain) {
  const int backward_begin = chain.backward_begin;
  for (int q = backward_begin; q < graph.end(); ++q) {
    const Operation& op = graph.operation(q);
    if (!op.in_place.empty() ||
        std::ranges::any_of(op.outputs, [&](int x) { return graph.tensor(x).storage != x; }))
      return {};
  }
  Graph out = graph;
  const auto made = [&](int x) -> Tensor& { return out.tensors[x]; };
  out.operations.back().inputs.clear();  // nothing need live at the end
  for (Tensor& x : out.tensors) {
    if (x.wanted) x.uses.pop_back();
    x.wanted = false;
  }
  const Backward backward(out, backward_begin);
  if (!backward.falls()) return {};
  bool even = true;  // all of one size
  for (int o = 1; o < backward_begin; ++o) {
    const int64_t least = made(out.operation(o - 1).outputs.front()).bytes;
    int64_t& bytes = made(out.operation(o).outputs.front()).bytes;
    even = even && bytes == least;
    bytes = std::min(bytes, least);
  }
  if (even && backward.steady() && backward.one_gradient()) {
    for (int q = backward_begin; q < out.end(); ++q) {
      for (const int x : out.operation(q).outputs)
        if (backward.hands_on(q)) made(x).bytes = 0;
    }
    return out;
  }
  for (Tensor& x : out.tensors)
    if (x.producer >= backward_begin) x.bytes = 0;
  for (int o = 0; o < out.end(); ++o) {
    Operation& op = out.operations[o];
    if (o >= backward_begin && backward.apart(o)) continue;
    Tensor own;  // what the operation takes beyond that, and nothing reads
    own.producer = o;
    own.storage = static_cast<int>(out.tensors.size());
    for (const auto* list : {&op.inputs, &op.outputs})
      for (const int x : *list) own.bytes += graph.tensor(x).bytes - made(x).bytes;
    op.outputs.push_back(own.storage);
    out.tensors.push_back(std::move(own));
  }
  return out;
}

double chain_bound(const Graph& graph, int64_t budget) {
  const std::optional<Chain> chain = single_chain(graph);
  const Graph relaxed = chain ? relaxed_chain(graph, *chain) : Graph{};
  if (relaxed.operations.empty()) return 0;
  const std::vector<Stage> stages = chain_stages(relaxed, *chain);
  const Reversal reversal(stages, budget, budget, budget, Reversal::Round::down);
  return reversal.solved() ? graph.base_cost() + reversal.extra(budget) : 0;
}

}  // namespace gacc::passes::planner
