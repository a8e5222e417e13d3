// A proven lower bound on the extra cost of every plan, and the choices behind it as seeds for the search.
//
// At a point t, whatever is needed later and not live at t must be made again later. With a price per byte on
// what is live, "recompute cost + price * bytes" is a closure problem, so one minimum cut solves it exactly;
// for every price, cut + price * (bytes forced - budget) bounds the extra cost from below (Lagrange).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

// One solution at one price.
struct Cut {
  double price = 0;
  double cost = 0;         // of what is made again
  int64_t bytes = 0;       // live across the point, beyond what is forced
  std::vector<char> kept;  // by tensor: its bytes are live across the point
};

struct PointBound {
  int point = 0;
  double extra = 0;       // the bound at this point
  std::vector<Cut> cuts;  // by falling bytes: breakpoints of the trade-off
};

// The bounds of one graph. The trade-off at a point does not depend on the budget: it is found once, when it is first
// asked for. What at() returns depends on its arguments alone, not on what was asked before.
class Bounds {
 public:
  // Keeps a reference to the graph.
  explicit Bounds(const Graph& graph);
  ~Bounds();
  Bounds(const Bounds&) = delete;
  Bounds& operator=(const Bounds&) = delete;

  const Graph& graph() const { return graph_; }
  // Points worth a try: the fullest operation of the plain program, the first of backward, some beyond.
  const std::vector<int>& points() const { return points_; }
  // The bound at the operation `point`.
  PointBound at(int point, int64_t budget);

 private:
  class TradeOff;
  const Graph& graph_;
  std::vector<int> points_;
  std::map<int, std::unique_ptr<TradeOff>> known_;  // by point
};

}  // namespace gacc::passes::planner
