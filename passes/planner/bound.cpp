// Nodes of the cut: `a` of a storage (it is available after the point), `r` of an operation (it runs again).
//   source -> a   infinite   something after the point reads it
//   a -> r        price * bytes   available, yet its maker does not run again: it was kept
//   r -> sink     cost
//   r -> a        infinite   for each of its inputs
// What the operation at the point reads and writes is live there anyway: available for nothing. Aliases count
// as their owner, which only lowers the bound. The value of any flow is a bound, so rounding cannot hurt it
// by more than its own last bits.
#include "passes/planner/bound.h"

#include <algorithm>
#include <limits>

namespace gacc::passes::planner {

namespace {

constexpr double kInfinite = 1e300;
constexpr int kCuts = 48;            // that find the trade-off of a point, at most
constexpr int kBudgetCuts = 24;      // that close in on the budget where these are too few, at most
constexpr double kSameCut = 1e-9;    // of the scale: a cut that betters the envelope by less is on it
constexpr double kEmptyArc = 1e-12;  // of the scale: an arc with less left counts as full
// Points of the backward pass that are tried beside its beginning, as parts of it.
constexpr double kBackwardPoints[] = {0.03, 0.08, 0.15, 0.3};

}  // namespace

// Not without a name: Bounds::TradeOff, which a header names, has members of these types.
namespace cuts {

// Dinic's maximum flow.
class Flow {
 public:
  int node() {
    head_.push_back(-1);
    return static_cast<int>(head_.size()) - 1;
  }
  int edge(int from, int to, double capacity) {
    edges_.push_back({to, head_[from], capacity, capacity});
    head_[from] = static_cast<int>(edges_.size()) - 1;
    edges_.push_back({from, head_[to], 0, 0});
    head_[to] = static_cast<int>(edges_.size()) - 1;
    return static_cast<int>(edges_.size()) - 2;
  }
  void set_capacity(int edge, double capacity) { edges_[edge].capacity = capacity; }

  double maximum(int source, int sink, double scale) {
    tiny_ = scale * kEmptyArc;
    for (Edge& e : edges_) e.left = e.capacity;
    double total = 0;
    while (layers(source, sink)) {
      next_ = head_;
      while (true) {
        const double pushed = push(source, sink);
        if (pushed <= tiny_) break;
        total += pushed;
      }
    }
    return total;
  }
  // After maximum: whether the node is on the source's side.
  bool with_source(int node) const { return level_[node] >= 0; }

 private:
  struct Edge {
    int to, next;
    double capacity, left;
  };

  bool layers(int source, int sink) {
    level_.assign(head_.size(), -1);
    level_[source] = 0;
    queue_.assign(1, source);
    for (size_t i = 0; i < queue_.size(); ++i) {
      const int from = queue_[i];
      for (int e = head_[from]; e >= 0; e = edges_[e].next) {
        const Edge& edge = edges_[e];
        if (edge.left <= tiny_ || level_[edge.to] >= 0) continue;
        level_[edge.to] = level_[from] + 1;
        queue_.push_back(edge.to);
      }
    }
    return level_[sink] >= 0;
  }

  // One path with an explicit stack: graphs are deeper than the machine's.
  double push(int source, int sink) {
    path_.clear();
    int at = source;
    while (at != sink) {
      int& e = next_[at];
      while (e >= 0) {
        const Edge& edge = edges_[e];
        if (edge.left > tiny_ && level_[edge.to] == level_[at] + 1) break;
        e = edge.next;
      }
      if (e >= 0) {
        path_.push_back(e);
        at = edges_[e].to;
        continue;
      }
      if (path_.empty()) return 0;
      level_[at] = -1;
      at = edges_[path_.back() ^ 1].to;
      path_.pop_back();
    }
    double least = kInfinite;
    for (const int e : path_) least = std::min(least, edges_[e].left);
    for (const int e : path_) {
      edges_[e].left -= least;
      edges_[e ^ 1].left += least;
    }
    return least;
  }

  std::vector<int> head_, next_, level_, queue_, path_;
  std::vector<Edge> edges_;
  double tiny_ = 0;
};

class Model {
 public:
  Model(const Graph& graph, int point) : graph_(graph), point_(point) {
    source_ = flow_.node(), sink_ = flow_.node();
    available_.assign(graph.tensors.size(), -1);
    again_.assign(graph.operations.size(), -1);
    free_.assign(graph.tensors.size(), 0);
    for (const auto* list : {&graph.operation(point).inputs, &graph.operation(point).outputs})
      for (const int x : *list) free_[graph.tensor(x).storage] = 1;
    for (size_t x = 0; x < graph.tensors.size(); ++x) {
      const Tensor& tensor = graph.tensors[x];
      if (tensor.producer < 0 || tensor.producer > point || tensor.uses.empty() ||
          tensor.uses.back() <= point)
        continue;
      const int node = available(tensor.storage);
      if (node >= 0) flow_.edge(source_, node, kInfinite);
    }
    for (size_t next = 0; next < todo_.size(); ++next) {  // makers of what may be wanted, backwards
      const int o = todo_[next];
      const int node = again_[o];
      for (const int x : graph.operation(o).inputs) {
        const int input = available(graph.tensor(x).storage);
        if (input >= 0) flow_.edge(node, input, kInfinite);
      }
    }
    for (const int o : todo_) scale_ += graph.operation(o).once ? 0 : graph.operation(o).again_cost();
  }

  Cut solve(double price, double& value) {
    for (const auto& [x, edge] : keep_)
      flow_.set_capacity(edge, price * static_cast<double>(graph_.tensor(x).bytes));
    value = flow_.maximum(source_, sink_, scale_);
    Cut cut;
    cut.price = price;
    cut.kept.assign(graph_.tensors.size(), 0);
    for (const int o : todo_)
      if (flow_.with_source(again_[o])) cut.cost += graph_.operation(o).again_cost();
    for (const auto& [x, edge] : keep_) {
      const int maker = graph_.tensor(x).producer;
      if (!flow_.with_source(available_[x]) || flow_.with_source(again_[maker])) continue;
      cut.kept[x] = 1;
      cut.bytes += graph_.tensor(x).bytes;
    }
    for (size_t x = 0; x < free_.size(); ++x) cut.kept[x] = cut.kept[x] != 0 || free_[x] != 0;
    return cut;
  }
  double scale() const { return scale_; }

 private:
  // The node of a storage, or -1 where it costs nothing to have it.
  int available(int x) {
    const size_t at = static_cast<size_t>(x);
    const int maker = graph_.tensor(x).producer;
    if (free_[at] != 0 || maker < 0 || maker > point_) return -1;
    if (available_[at] < 0) {
      available_[at] = flow_.node();
      int& again = again_[maker];
      if (again < 0) {
        again = flow_.node();
        flow_.edge(again, sink_,
                   graph_.operation(maker).once ? kInfinite : graph_.operation(maker).again_cost());
        todo_.push_back(maker);
      }
      keep_.emplace_back(x, flow_.edge(available_[at], again, 0));
    }
    return available_[at];
  }

  const Graph& graph_;
  int point_;
  Flow flow_;
  int source_ = 0, sink_ = 0;
  std::vector<int> available_, again_;     // nodes by storage, by operation
  std::vector<char> free_;                 // by storage
  std::vector<std::pair<int, int>> keep_;  // storage, edge
  std::vector<int> todo_;                  // operations with a node
  double scale_ = 0;
};

// The lower envelope of cost against bytes, as far as cuts have found it.
struct Envelope {
  std::vector<Cut> cuts;                          // by falling bytes
  std::vector<char> done;                         // by pair of neighbours: there is no cut between them
  std::vector<std::pair<double, double>> values;  // prices, and the values of their cuts
};

// Looks for a cut between the neighbours `pair` and the next one.
void split(Model& model, Envelope& envelope, size_t pair) {
  const Cut &low = envelope.cuts[pair], &high = envelope.cuts[pair + 1];
  envelope.done[pair] = 1;
  if (low.bytes <= high.bytes) return;
  const double price = (high.cost - low.cost) / static_cast<double>(low.bytes - high.bytes);
  if (!(price > 0)) return;
  double value = 0;
  Cut middle = model.solve(price, value);
  envelope.values.emplace_back(price, value);
  const auto line = [&](const Cut& cut) { return cut.cost + price * static_cast<double>(cut.bytes); };
  if (line(middle) >= line(low) - kSameCut * model.scale() || middle.bytes >= low.bytes ||
      middle.bytes <= high.bytes)
    return;
  envelope.done[pair] = 0;
  envelope.cuts.insert(envelope.cuts.begin() + static_cast<std::ptrdiff_t>(pair) + 1, std::move(middle));
  envelope.done.insert(envelope.done.begin() + static_cast<std::ptrdiff_t>(pair), 0);
}

}  // namespace cuts

class Bounds::TradeOff {
 public:
  // Splits the widest step first.
  TradeOff(const Graph& graph, int point) : model_(graph, point) {
    // A price that keeps everything (of any cost) and one that keeps nothing.
    double value = 0;
    Cut all = model_.solve(0, value);  // at price 0 keeping is free
    const double top = std::max(model_.scale(), 1e-300) * 2;
    Cut none = model_.solve(top, value);
    found_ = {{std::move(all), std::move(none)}, {0}, {{top, value}}};
    const auto width = [&](size_t i) { return found_.cuts[i].bytes - found_.cuts[i + 1].bytes; };
    for (int attempt = 0; attempt < kCuts; ++attempt) {
      size_t pair = found_.done.size();
      for (size_t i = 0; i < found_.done.size(); ++i)
        if (found_.done[i] == 0 && (pair == found_.done.size() || width(i) > width(pair))) pair = i;
      if (pair == found_.done.size()) break;
      cuts::split(model_, found_, pair);
    }
  }

  // The bound where so many bytes more are live than the budget has, if everything is forced; the cuts go on where the
  // envelope crosses the budget: between the last cut above it and the first below.
  PointBound at(double excess) {
    cuts::Envelope near = found_;
    const auto over = [&](size_t i) { return static_cast<double>(near.cuts[i].bytes) + excess > 0; };
    for (int attempt = 0; attempt < kBudgetCuts; ++attempt) {
      size_t pair = near.done.size();
      for (size_t i = 0; i < near.done.size(); ++i)
        if (over(i) && !over(i + 1)) pair = i;
      if (pair == near.done.size() || near.done[pair] != 0) break;
      cuts::split(model_, near, pair);
    }
    PointBound out;
    if (over(0))
      for (const auto& [price, value] : near.values) out.extra = std::max(out.extra, value + price * excess);
    out.cuts = std::move(near.cuts);
    return out;
  }

 private:
  cuts::Model model_;
  cuts::Envelope found_;
};

namespace {

// The points that Bounds::points gives.
std::vector<int> bound_points(const Graph& graph) {
  // Bytes live at each operation of the plain program.
  const size_t n = graph.operations.size();
  std::vector<int64_t> change(n + 1, 0);
  std::vector<int> from(graph.tensors.size(), -1), to(graph.tensors.size(), -1);
  for (const Tensor& x : graph.tensors) {
    if (x.producer < 0) continue;
    int& first = from[x.storage];
    int& last = to[x.storage];
    if (first < 0 || x.producer < first) first = x.producer;
    last = std::max(last, x.uses.empty() ? x.producer : x.uses.back());
  }
  for (size_t s = 0; s < graph.tensors.size(); ++s) {
    if (from[s] < 0) continue;
    change[from[s]] += graph.tensors[s].bytes;
    change[static_cast<size_t>(to[s]) + 1] -= graph.tensors[s].bytes;
  }
  int fullest = 0, backward = -1;
  int64_t live = 0, most = -1;
  for (size_t t = 0; t < n; ++t) {
    live += change[t];
    if (live > most) most = live, fullest = static_cast<int>(t);
    if (backward < 0 && graph.operations[t].backward) backward = static_cast<int>(t);
  }
  std::vector<int> points = {fullest};
  if (backward >= 0) {
    points.push_back(backward);
    const double rest = static_cast<double>(graph.end() - backward);
    for (const double part : kBackwardPoints) points.push_back(backward + static_cast<int>(part * rest));
  }
  points.push_back(std::min(fullest + 2, graph.end()));
  std::ranges::sort(points);
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

}  // namespace

Bounds::Bounds(const Graph& graph) : graph_(graph), points_(bound_points(graph)) {}
Bounds::~Bounds() = default;

PointBound Bounds::at(int point, int64_t budget) {
  std::unique_ptr<TradeOff>& known = known_[point];
  if (!known) known = std::make_unique<TradeOff>(graph_, point);
  PointBound out = known->at(static_cast<double>(graph_.own_bytes(point) - budget));
  out.point = point;
  return out;
}

}  // namespace gacc::passes::planner
