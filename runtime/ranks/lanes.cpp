#include "runtime/ranks/lanes.h"

#include <algorithm>

namespace gacc {

int64_t lane_of(int64_t position, int64_t launches, int64_t lanes) {
  const auto wide = static_cast<__int128>(std::min(position, launches - 1)) * lanes;
  return static_cast<int64_t>(wide / launches);
}

LaneRange lanes_of_rank(int64_t rank, int64_t lanes, int64_t ranks) {
  // The first lane with lane * ranks / lanes >= rank.
  const auto first = [&](int64_t r) { return (r * lanes + ranks - 1) / ranks; };
  return {first(rank), first(rank + 1)};
}

LaneRange node_in(LaneRange mine, int64_t lane, int64_t lanes) {
  for (int64_t size = lanes; size > 1; size /= 2) {
    const LaneRange node{lane / size * size, lane / size * size + size};
    if (mine.low <= node.low && node.high <= mine.high) return node;
  }
  return {lane, lane + 1};
}

int64_t LaneWindow::launches_of(LaneRange of) const {
  const auto first = [&](int64_t lane) {
    return std::min(launches, (lane * accumulate + lanes - 1) / lanes);
  };
  return first(of.high) - first(of.low);
}

float kept_after(double kept, int64_t launches) {
  double rest = 1;
  for (int64_t i = 0; i < launches && rest != 0; ++i) rest *= kept;
  return static_cast<float>(rest);
}

std::optional<LaneStack::Close> LaneStack::open(int64_t lane) {
  std::optional<Close> close;
  if (!nodes_.empty()) {
    if (nodes_.back().contains(lane)) return {};
    close = {0, static_cast<int64_t>(nodes_.size()) - 1, true};
    const auto halves = [](LaneRange left, LaneRange right) {
      const int64_t size = right.high - right.low;
      return left.high - left.low == size && left.low % (2 * size) == 0;
    };
    while (nodes_.size() > 1 && halves(nodes_.end()[-2], nodes_.back())) {
      nodes_.end()[-2].high = nodes_.back().high;
      nodes_.pop_back();
    }
    close->first = static_cast<int64_t>(nodes_.size()) - 1;
  }
  nodes_.push_back({lane, lane + 1});
  return close;
}

std::optional<LaneStack::Close> LaneStack::finish() {
  if (nodes_.empty()) return {};
  const auto waiting = static_cast<int64_t>(nodes_.size()) - 1;
  const auto whole = [&](LaneRange node) { return node_in(mine_, node.low, lanes_); };
  while (nodes_.size() > 1 && whole(nodes_.end()[-2]) == whole(nodes_.back())) nodes_.pop_back();
  nodes_.back() = whole(nodes_.back());
  const auto first = static_cast<int64_t>(nodes_.size()) - 1;
  if (first == waiting) return {};
  return Close{first, waiting, false};
}

int64_t LaneStack::places(int64_t lanes, LaneRange mine) {
  LaneStack stack(lanes, mine);
  size_t most = 1;
  for (int64_t lane = mine.low; lane < mine.high; ++lane) {
    stack.open(lane);
    most = std::max(most, stack.nodes().size());
  }
  return static_cast<int64_t>(most) - 1;
}

}  // namespace gacc
