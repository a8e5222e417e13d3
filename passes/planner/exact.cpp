// A move executes an operation whose inputs live: the next one in program order, or an earlier one again.
// Before it, storages are freed until it fits; only the largest sets that can stay are tried, for what stays
// can be freed later. The estimate of what is still to pay: the operations that must run again since what
// they make is needed and not live. It never falls by more than a move costs, so the first path to a state is
// best.
#include "passes/planner/exact.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

namespace gacc::passes::planner {

namespace {

using Set = uint32_t;  // of made tensors

struct State {
  int next = 0;  // the first execution to come
  Set live = 0;
  bool operator==(const State&) const = default;
};
struct Hash {
  size_t operator()(const State& s) const {
    const uint64_t x = (static_cast<uint64_t>(s.next) << 32 | s.live) * 0x9e3779b97f4a7c15u;
    return static_cast<size_t>(x ^ (x >> 29));
  }
};

struct Node {
  State state;
  double cost = 0;
  int parent = -1, operation = -1;
  Set kept = 0;  // of the parent's live tensors: the others were freed before the operation
};

class Astar {
 public:
  Astar(const Graph& graph, int64_t budget) : graph_(graph), budget_(budget) {
    bit_.assign(graph.tensors.size(), 0);
    for (size_t x = 0; x < graph.tensors.size(); ++x) {
      if (graph.tensors[x].producer < 0) continue;
      bit_[x] = Set{1} << made_.size();
      made_.push_back(static_cast<int>(x));
    }
    for (const Operation& op : graph.operations) {
      inputs_.push_back(set_of(op.inputs));
      outputs_.push_back(set_of(op.outputs));
    }
    for (const int x : made_) {
      const int s = graph.tensor(x).storage;
      size_t at = 0;
      while (at < storages_.size() && storages_[at] != s) ++at;
      if (at == storages_.size()) storages_.push_back(s), groups_.push_back(0);
      groups_[at] |= bit_[x];
    }
    needed_after_.assign(graph.operations.size() + 1, 0);
    for (size_t t = graph.operations.size(); t-- > 0;) needed_after_[t] = needed_after_[t + 1] | inputs_[t];
    made_before_.assign(graph.operations.size() + 1, 0);
    for (size_t t = 0; t < graph.operations.size(); ++t) made_before_[t + 1] = made_before_[t] | outputs_[t];
  }

  Exact solve(int64_t most_states) {
    Exact out;
    add({{0, 0}, 0, -1, -1, 0});
    const int end = graph_.end();
    while (!open_.empty()) {
      const auto [estimate, unused, index] = open_.top();
      open_.pop();
      const Node node = nodes_[index];
      if (!closed_.emplace(node.state, index).second) continue;
      if (node.state.next > end) return finish(index);
      if (static_cast<int64_t>(closed_.size()) > most_states) return out;
      for (int o = 0; o <= node.state.next; ++o) {
        if ((inputs_[o] & ~node.state.live) != 0) continue;
        // Again only where something is missing that it makes.
        if (o < node.state.next && (outputs_[o] & ~node.state.live) == 0) continue;
        move(index, node, o);
      }
    }
    out.outcome = Exact::Outcome::infeasible;
    return out;
  }

 private:
  Set set_of(const std::vector<int>& tensors) const {
    Set set = 0;
    for (const int x : tensors) set |= bit_[x];
    return set;
  }

  int64_t bytes(Set set) const {
    int64_t sum = 0;
    for (size_t g = 0; g < groups_.size(); ++g)
      if ((groups_[g] & set) != 0) sum += graph_.tensor(storages_[g]).bytes;
    return sum;
  }

  void move(int parent, const Node& node, int o) {
    const Set busy = inputs_[o] | outputs_[o];
    const int64_t own = bytes(busy);
    if (own > budget_) return;
    // Tensors in the storages of the operation stay for nothing; the others by storage.
    Set stay = node.state.live & busy;
    std::vector<size_t> choice;
    int64_t all = own;
    for (size_t g = 0; g < groups_.size(); ++g) {
      if ((groups_[g] & node.state.live) == 0) continue;
      const int64_t size = graph_.tensor(storages_[g]).bytes;
      if ((groups_[g] & busy) != 0 || size == 0) {
        stay |= groups_[g] & node.state.live;
      } else {
        choice.push_back(g);
        all += size;
      }
    }
    choose(parent, node, o, choice, 0, stay, own, all);
  }

  // Every largest subset of the choice that fits. `used`: bytes of what stays; `all`: with all undecided
  // ones.
  void choose(int parent, const Node& node, int o, const std::vector<size_t>& choice, size_t at, Set stay,
              int64_t used, int64_t all) {
    if (all <= budget_) {
      for (; at < choice.size(); ++at) stay |= groups_[choice[at]] & node.state.live;
      // Largest: nothing that was freed would still fit.
      for (const size_t g : choice)
        if ((groups_[g] & stay) == 0 && all + graph_.tensor(storages_[g]).bytes <= budget_) return;
      arrive(parent, node, o, stay);
      return;
    }
    if (at == choice.size()) return;
    const int64_t size = graph_.tensor(storages_[choice[at]]).bytes;
    if (used + size <= budget_)
      choose(parent, node, o, choice, at + 1, stay | (groups_[choice[at]] & node.state.live), used + size,
             all);
    choose(parent, node, o, choice, at + 1, stay, used, all - size);
  }

  void arrive(int parent, const Node& node, int o, Set kept) {
    Node next;
    next.state.next = node.state.next + (o == node.state.next ? 1 : 0);
    next.state.live = kept | outputs_[o];
    next.cost = node.cost + graph_.operation(o).cost;
    next.parent = parent;
    next.operation = o;
    next.kept = kept;
    add(std::move(next));
  }

  // Costs of first executions to come, and of what must run again.
  double estimate(const State& state) const {
    Set missing = needed_after_[state.next] & made_before_[state.next] & ~state.live;
    Set seen = missing;
    double sum = 0;
    std::vector<char> again(static_cast<size_t>(state.next), 0);
    while (missing != 0) {
      const int x = made_[__builtin_ctz(missing)];
      missing &= missing - 1;
      const size_t o = static_cast<size_t>(graph_.tensor(x).producer);
      if (again[o] != 0) continue;
      again[o] = 1;
      sum += graph_.operations[o].cost;
      const Set more = inputs_[o] & ~state.live & ~seen;
      missing |= more;
      seen |= more;
    }
    for (size_t t = static_cast<size_t>(state.next); t < graph_.operations.size(); ++t)
      sum += graph_.operations[t].cost;
    return sum;
  }

  void add(Node node) {
    if (closed_.count(node.state) != 0) return;
    const auto [place, fresh] = best_.emplace(node.state, node.cost);
    if (!fresh) {
      if (place->second <= node.cost) return;
      place->second = node.cost;
    }
    open_.push({node.cost + estimate(node.state), -node.state.next, static_cast<int>(nodes_.size())});
    nodes_.push_back(std::move(node));
  }

  Exact finish(int index) const {
    Exact out;
    out.outcome = Exact::Outcome::optimal;
    out.cost = nodes_[index].cost;
    std::vector<int> path;
    for (int i = index; nodes_[i].parent >= 0; i = nodes_[i].parent) path.push_back(i);
    std::ranges::reverse(path);
    Set live = 0;
    for (const int i : path) {
      const Node& node = nodes_[i];
      for (const int x : made_)
        if (((live & ~node.kept) & bit_[x]) != 0) out.schedule.back().drops.push_back(x);
      live = node.state.live;
      out.peak = std::max(out.peak, bytes(live));
      if (node.operation != graph_.end()) out.schedule.push_back({node.operation, {}});
    }
    return out;
  }

  struct Entry {
    double estimate;
    int order;  // among equals: who is further
    int node;
    bool operator<(const Entry& other) const {  // the queue gives the greatest
      if (estimate != other.estimate) return estimate > other.estimate;
      return order != other.order ? order > other.order : node > other.node;
    }
  };

  const Graph& graph_;
  int64_t budget_;
  std::vector<Set> bit_;               // by tensor
  std::vector<int> made_;              // tensor by bit
  std::vector<Set> inputs_, outputs_;  // by operation
  std::vector<int> storages_;
  std::vector<Set> groups_;  // by storage of the list above
  std::vector<Set> needed_after_, made_before_;
  std::vector<Node> nodes_;
  std::priority_queue<Entry> open_;
  std::unordered_map<State, int, Hash> closed_;
  std::unordered_map<State, double, Hash> best_;
};

}  // namespace

Exact solve_exactly(const Graph& graph, int64_t budget, int64_t most_states) {
  int made = 0;
  for (const Tensor& x : graph.tensors) made += x.producer >= 0 ? 1 : 0;
  if (made > kExactTensors) return {};
  return Astar(graph, budget).solve(most_states);
}

}  // namespace gacc::passes::planner
