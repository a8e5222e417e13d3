// The lanes of a window (train.lanes = V, a power of two): its K launches are dealt to V lanes by position.
// A lane's sums are made in order; those of the lanes are added by the binary tree over their numbers, the
// lower one left, and a lane without a launch is no term. So the bits of a sum depend on V, and not on who
// makes which lanes: ranks have lanes in a row, and the tree is the same.
//
// On the device the open lane adds to the accumulator @S itself. Closed ones wait in @S.node0, @S.node1, ... from
// left to right for their other half; the program `close` adds and moves them (passes/lanes.cpp).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace gacc {

struct LaneRange {  // lanes low..high-1: a node of the tree, or the lanes of a rank
  int64_t low = 0, high = 1;
  bool operator==(const LaneRange&) const = default;
  bool contains(int64_t lane) const { return low <= lane && lane < high; }
};

// The lane of a launch, by its position among `launches`; the last one for what comes after them.
int64_t lane_of(int64_t position, int64_t launches, int64_t lanes);
LaneRange lanes_of_rank(int64_t rank, int64_t lanes, int64_t ranks);
// The largest node with the lane that lies in `mine`.
LaneRange node_in(LaneRange mine, int64_t lane, int64_t lanes);

// A window of `launches` launches so far, of which `accumulate` would fill it.
struct LaneWindow {
  int64_t lanes = 1, accumulate = 1, launches = 0;
  int64_t launches_of(LaneRange of) const;
};

// Returns what remains of 1 after that many launches that multiply by `kept`, with the same bits everywhere.
float kept_after(double kept, int64_t launches);

// The nodes that a rank holds in the course of a window, and the work of `close`.
class LaneStack {
 public:
  struct Close {
    int64_t first = 0, last = 0;  // adds the waiting nodes first..last-1 to the accumulator, then ...
    bool keep = false;            // ... puts it into place `first`, and clears it for the next lane
    bool operator==(const Close&) const = default;
  };

  LaneStack() = default;
  LaneStack(int64_t lanes, LaneRange mine) : lanes_(lanes), mine_(mine) {}
  // Before a launch of that lane.
  std::optional<Close> open(int64_t lane);
  // After the window's last launch: what is left are the largest nodes within the rank's lanes.
  std::optional<Close> finish();
  // From left to right; the last one is in the accumulator, the others wait.
  const std::vector<LaneRange>& nodes() const { return nodes_; }
  void clear() { nodes_.clear(); }
  void hold(LaneRange node) { nodes_ = {node}; }  // in the accumulator
  // The nodes that wait at once, at most.
  static int64_t places(int64_t lanes, LaneRange mine);

 private:
  int64_t lanes_ = 1;
  LaneRange mine_;
  std::vector<LaneRange> nodes_;
};

// Adds the values of nodes, which lie side by side in any order of sizes, by the tree: add(left, right, lanes of the
// right one).
template <class Value, class Add>
std::optional<Value> tree_sum(LaneRange of, std::span<const LaneRange> nodes, std::span<Value> values,
                              const Add& add) {
  bool any = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == of) return std::move(values[i]);
    any = any || of.contains(nodes[i].low);
  }
  if (!any) return {};
  const int64_t middle = (of.low + of.high) / 2;
  std::optional<Value> left = tree_sum({of.low, middle}, nodes, values, add),
                       right = tree_sum({middle, of.high}, nodes, values, add);
  if (!left || !right) return left ? std::move(left) : std::move(right);
  return add(std::move(*left), std::move(*right), LaneRange{middle, of.high});
}

}  // namespace gacc
