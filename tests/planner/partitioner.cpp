#include "tests/planner/partitioner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace gacc::passes::planner {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The largest flow by shortest augmenting paths; afterwards, what the source still reaches.
class Flow {
 public:
  explicit Flow(size_t nodes) : arcs_of_(nodes) {}
  void add(size_t from, size_t to, double capacity) {
    arcs_of_[from].push_back(arcs_.size());
    arcs_.push_back({to, capacity});
    arcs_of_[to].push_back(arcs_.size());
    arcs_.push_back({from, 0});
  }
  std::vector<char> cut(size_t source, size_t sink) {
    std::vector<size_t> by;
    while (search(source, by)[sink] != 0) {
      double most = kInfinite;
      for (size_t v = sink; v != source; v = arcs_[by[v] ^ 1].to)
        most = std::min(most, arcs_[by[v]].capacity);
      for (size_t v = sink; v != source; v = arcs_[by[v] ^ 1].to) {
        arcs_[by[v]].capacity -= most;
        arcs_[by[v] ^ 1].capacity += most;
      }
    }
    return search(source, by);
  }

 private:
  struct Arc {
    size_t to;
    double capacity;
  };
  // What an augmenting path reaches, and the arc by which.
  std::vector<char> search(size_t source, std::vector<size_t>& by) const {
    std::vector<char> seen(arcs_of_.size(), 0);
    by.assign(arcs_of_.size(), 0);
    std::vector<size_t> queue = {source};
    seen[source] = 1;
    for (size_t next = 0; next < queue.size(); ++next) {
      for (const size_t a : arcs_of_[queue[next]]) {
        if (arcs_[a].capacity < 1 || seen[arcs_[a].to] != 0) continue;  // bytes: less than one is none
        seen[arcs_[a].to] = 1;
        by[arcs_[a].to] = a;
        queue.push_back(arcs_[a].to);
      }
    }
    return seen;
  }
  std::vector<Arc> arcs_;
  std::vector<std::vector<size_t>> arcs_of_;
};

// What is not run again, beside products.
struct Bans {
  bool read_by_products = true;  // in the backward pass: the value must be in memory there anyway
  bool read_far_apart = true;    // the later readers of a value that a product stands before
};

class Partitioner {
 public:
  explicit Partitioner(const Practice& practice)
      : graph_(practice.graph), product_(practice.product), distance_(graph_.tensors.size(), kFar) {
    while (turn_ < graph_.end() && !graph_.operation(turn_).backward) ++turn_;
    for (size_t x = graph_.tensors.size(); x-- > 0;) {
      for (const int use : graph_.tensors[x].uses) {
        int next = use >= turn_ ? 0 : kFar;
        for (const int y : graph_.operation(use).outputs)
          next = use >= turn_ ? 0 : std::min(next, distance_[static_cast<size_t>(y)]);
        distance_[x] = std::min(distance_[x], next + 1);
      }
    }
  }

  std::vector<char> run(double budget) const {
    const std::vector<char> whole = cut(banned({}), {});
    if (budget >= 1) return whole;
    const double most = bytes_of(whole);
    if (most <= 0) return whole;
    // The rules of thumb go first, all at once; then some products run again.
    std::vector<char> bans = banned({.read_by_products = false, .read_far_apart = false});
    std::vector<char> saved = cut(bans, {});
    if (bytes_of(saved) / most < budget) return saved;
    return cut(bans, losers(bans, budget, most));
  }

 private:
  static constexpr int kFar = 1 << 20;

  bool forward(size_t x) const {
    return graph_.tensors[x].producer >= 0 && graph_.tensors[x].producer < turn_;
  }
  bool is_product(int o) const { return product_[static_cast<size_t>(o)] != 0; }
  double size(size_t x) const {
    return static_cast<double>(graph_.tensors[static_cast<size_t>(graph_.tensors[x].storage)].bytes);
  }
  double bytes_of(const std::vector<char>& saved) const {
    double sum = 0;
    for (size_t x = 0; x < saved.size(); ++x) sum += saved[x] != 0 ? size(x) : 0;
    return sum;
  }

  // By tensor: its maker does not run again.
  std::vector<char> banned(const Bans& bans) const {
    std::vector<char> out(graph_.tensors.size(), 0);
    for (size_t x = 0; x < out.size(); ++x) {
      if (!forward(x)) continue;
      const Tensor& tensor = graph_.tensors[x];
      const Operation& maker = graph_.operation(tensor.producer);
      const bool view = tensor.storage != static_cast<int>(x);
      double read = 0;
      for (const int y : maker.inputs) read += size(static_cast<size_t>(y));
      const bool reduces = read > 4 * size(x);
      const bool by_product = std::any_of(tensor.uses.begin(), tensor.uses.end(),
                                          [&](int use) { return use >= turn_ && is_product(use); });
      out[x] =
          is_product(tensor.producer) || (!view && reduces) || (bans.read_by_products && !view && by_product);
    }
    if (bans.read_far_apart) ban_far_readers(out);
    return out;
  }

  void ban_far_readers(std::vector<char>& out) const {
    for (size_t x = 0; x < out.size(); ++x) {
      if (!forward(x)) continue;
      // The first product that follows from the value.
      std::vector<char> follows(graph_.tensors.size(), 0);
      follows[x] = 1;
      int first = turn_;
      for (int o = graph_.tensors[x].producer + 1; o < first; ++o) {
        const std::vector<int>& inputs = graph_.operation(o).inputs;
        if (std::none_of(inputs.begin(), inputs.end(),
                         [&](int y) { return follows[static_cast<size_t>(y)] != 0; }))
          continue;
        if (is_product(o)) first = o;
        for (const int y : graph_.operation(o).outputs) follows[static_cast<size_t>(y)] = 1;
      }
      for (const int use : graph_.tensors[x].uses) {
        if (use <= first || use >= turn_ || is_product(use)) continue;
        for (const int y : graph_.operation(use).outputs) out[static_cast<size_t>(y)] = 1;
      }
    }
  }

  // By storage, what is saved: the cheapest set from which all that the backward pass reads can be made
  // without what is banned. A value costs its bytes, more the farther it is from the backward pass, and twice
  // where it would not be written otherwise.
  std::vector<char> cut(const std::vector<char>& bans, const std::vector<char>& allowed) const {
    const size_t source = 0, sink = 1;
    const auto in = [](size_t x) { return 2 + 2 * x; };
    const auto out = [](size_t x) { return 3 + 2 * x; };
    Flow flow(2 + 2 * graph_.tensors.size());
    for (size_t x = 0; x < graph_.tensors.size(); ++x) {
      const Tensor& tensor = graph_.tensors[x];
      if (tensor.producer >= turn_) continue;
      const bool start = tensor.producer < 0;
      if (start || (bans[x] != 0 && (allowed.empty() || allowed[x] == 0))) flow.add(source, in(x), kInfinite);
      const bool written =
          start || is_product(tensor.producer) ||
          std::any_of(tensor.uses.begin(), tensor.uses.end(), [&](int use) { return is_product(use); });
      const double far = std::pow(1.1, std::min(distance_[x], 100));
      flow.add(in(x), out(x), start ? 0 : size(x) * far * (written ? 1 : 2));
      for (const int use : tensor.uses) {
        if (use >= turn_) flow.add(out(x), sink, kInfinite);
        if (use >= turn_) break;
        for (const int y : graph_.operation(use).outputs)
          flow.add(out(x), in(static_cast<size_t>(y)), kInfinite);
      }
    }
    const std::vector<char> reached = flow.cut(source, sink);
    std::vector<char> saved(graph_.tensors.size(), 0);
    for (size_t x = 0; x < saved.size(); ++x) {
      if (forward(x) && reached[in(x)] != 0 && reached[out(x)] == 0)
        saved[static_cast<size_t>(graph_.tensors[x].storage)] = 1;
    }
    return saved;
  }

  // Which of the banned may run again after all: those that a knapsack leaves out, which takes as much time
  // as fits into the budget; sizes in parts of 1/10,000.
  std::vector<char> losers(const std::vector<char>& bans, double budget, double most) const {
    constexpr double kParts = 10000;
    std::vector<size_t> items;
    for (size_t x = 0; x < bans.size(); ++x) {
      if (bans[x] != 0 && distance_[x] < kFar) items.push_back(x);
    }
    const auto room = static_cast<size_t>(std::lround(budget * kParts));
    std::vector<std::vector<double>> best(items.size() + 1, std::vector<double>(room + 1, 0));
    const auto parts = [&](size_t i) {
      return static_cast<size_t>(std::lround(size(items[i]) / most * kParts));
    };
    const auto cost = [&](size_t i) { return graph_.operation(graph_.tensors[items[i]].producer).cost; };
    for (size_t i = 0; i < items.size(); ++i) {
      for (size_t r = 0; r <= room; ++r) {
        best[i + 1][r] = best[i][r];
        if (parts(i) <= r) best[i + 1][r] = std::max(best[i][r], best[i][r - parts(i)] + cost(i));
      }
    }
    std::vector<char> out(bans.size(), 0);
    for (size_t i = items.size(), r = room; i-- > 0;) {
      if (best[i + 1][r] == best[i][r])
        out[items[i]] = 1;
      else
        r -= parts(i);
    }
    return out;
  }

  const Graph& graph_;
  const std::vector<char>& product_;
  std::vector<int> distance_;  // by tensor: readers on the way to the backward pass
  int turn_ = 0;
};

}  // namespace

std::vector<char> saved_values(const Practice& practice, double budget) {
  return Partitioner(practice).run(budget);
}

RecomputePlan plan_of(const Graph& graph, const std::vector<char>& saved) {
  int turn = 0;
  while (turn < graph.end() && !graph.operation(turn).backward) ++turn;
  RecomputePlan plan(graph);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    const bool kept = saved[static_cast<size_t>(tensor.storage)] != 0;
    if (tensor.producer < 0 || tensor.producer >= turn) continue;
    const auto next = std::lower_bound(tensor.uses.begin(), tensor.uses.end(), turn);
    if (next == tensor.uses.end()) {
      if (kept && tensor.storage == static_cast<int>(i)) plan.held[i] = 1;
      continue;
    }
    const auto gap = static_cast<size_t>(plan.first(static_cast<int>(i)) + (next - tensor.uses.begin()));
    plan.intervals[gap] = kept ? Interval::keep : Interval::drop;
  }
  return plan;
}

}  // namespace gacc::passes::planner
