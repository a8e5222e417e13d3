// A proven lower bound on the extra cost of every plan, and the choices behind it as seeds for the search.
//
// At a point t, whatever is needed later and not live at t must be made again later. With a price per byte on
// what is live, "recompute cost + price * bytes" is a closure problem, so one minimum cut solves it exactly;
// for every price, cut + price * (bytes forced - budget) bounds the extra cost from below (Lagrange).
#pragma once
#include <cstdint>
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

// The bound at the operation `point`; `breakpoints`: the most of them to find besides those it needs.
PointBound bound_at(const Graph& graph, int point, int64_t budget, int breakpoints, int64_t& work);

// Points worth a try: the fullest operation of the plain program, the first of backward, some beyond.
std::vector<int> bound_points(const Graph& graph);

}  // namespace gacc::passes::planner
