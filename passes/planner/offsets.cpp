// Greedy placement, in several orders: none is best always, and each takes microseconds on a step's hundred
// values. Where none reaches what is asked, the complete search of pack.cpp.
#include "passes/planner/offsets.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>

namespace gacc::passes::planner {

namespace {

std::vector<int64_t> bytes_by_instant(const std::vector<Block>& blocks) {
  int instants = 0;
  for (const Block& block : blocks) instants = std::max(instants, block.last + 1);
  std::vector<int64_t> bytes(static_cast<size_t>(instants), 0);
  for (const Block& block : blocks)
    for (int t = block.first; t <= block.last; ++t) bytes[t] += block.bytes;
  return bytes;
}

enum class Fit : uint8_t { lowest, tightest };  // the lowest gap that holds the block, or the smallest

// A block that has its place.
struct Placed {
  int64_t begin, end;  // bytes
  int first, last;
  size_t block;
};

Placement greedy(const std::vector<Block>& blocks, const std::vector<size_t>& order, Fit fit) {
  Placement out;
  out.offsets.assign(blocks.size(), 0);
  std::vector<Placed> placed;  // from the bottom up
  placed.reserve(blocks.size());
  const auto lower = [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.block) < std::pair(b.begin, b.block);
  };
  for (const size_t i : order) {
    const auto& [bytes, first, last, length] = blocks[i];
    // Between those that this one meets in time are the gaps.
    int64_t low = 0, best = -1, best_gap = std::numeric_limits<int64_t>::max();
    for (const Placed& other : placed) {
      if (other.first > last || first > other.last) continue;
      const int64_t gap = other.begin - low;
      if (gap >= bytes && gap < best_gap) {
        best = low, best_gap = gap;
        if (fit == Fit::lowest) break;
      }
      low = std::max(low, other.end);
    }
    const int64_t begin = out.offsets[i] = best >= 0 ? best : low;
    out.height = std::max(out.height, begin + bytes);
    const Placed now{begin, begin + bytes, first, last, i};
    placed.insert(std::ranges::upper_bound(placed, now, lower), now);
  }
  return out;
}

}  // namespace

int64_t liveness_bound(const std::vector<Block>& blocks) {
  const std::vector<int64_t> bytes = bytes_by_instant(blocks);
  return bytes.empty() ? 0 : *std::ranges::max_element(bytes);
}

Placement place_greedily(const std::vector<Block>& blocks, int64_t enough, const std::vector<size_t>& first) {
  const std::vector<int64_t> bytes = bytes_by_instant(blocks);
  std::vector<int64_t> crowd(blocks.size(), 0);  // the most bytes needed at one instant of a block's life
  for (size_t i = 0; i < blocks.size(); ++i)
    for (int t = blocks[i].first; t <= blocks[i].last; ++t) crowd[i] = std::max(crowd[i], bytes[t]);
  const auto length = [&](size_t i) { return length_of(blocks[i]); };
  using Key = std::array<int64_t, 3>;  // the smallest goes first
  using Keys = std::array<Key, 6>;
  std::vector<Keys> keys;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& b = blocks[i];
    keys.push_back({Key{-b.bytes, -length(i), b.first}, Key{b.first, -b.bytes, 0},
                    Key{-length(i), -b.bytes, b.first}, Key{-crowd[i], -length(i), -b.bytes},
                    Key{-crowd[i], -b.bytes, b.first}, Key{-b.last, -b.bytes, 0}});
  }
  Placement best;
  best.height = std::numeric_limits<int64_t>::max();
  for (size_t k = 0; k < std::tuple_size_v<Keys>; ++k) {
    std::vector<size_t> order(blocks.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order,
                      [&](size_t a, size_t b) { return std::tie(keys[a][k], a) < std::tie(keys[b][k], b); });
    if (!first.empty()) {
      std::erase_if(order, [&](size_t i) { return std::ranges::find(first, i) != first.end(); });
      order.insert(order.begin(), first.begin(), first.end());
    }
    for (const Fit fit : {Fit::tightest, Fit::lowest}) {
      Placement next = greedy(blocks, order, fit);
      if (next.height < best.height) best = std::move(next);
      if (best.height <= enough) return best;
    }
  }
  return best;
}

Packing pack(const std::vector<Block>& blocks, int64_t capacity, int64_t work) {
  if (liveness_bound(blocks) > capacity) return {std::nullopt, true};
  Placement greedy = place_greedily(blocks, capacity);
  if (greedy.height <= capacity) return {std::move(greedy), false};
  return search_packing(blocks, capacity, work);
}

namespace {

constexpr int64_t kWorkWithin = int64_t{1} << 24;  // a fraction of a second

bool take_if_found(Placement& best, Packing packing) {
  if (packing.placement) best = std::move(*packing.placement);
  return packing.placement.has_value();
}

}  // namespace

Placement place_within(const std::vector<Block>& blocks, int64_t most) {
  Placement best = place_greedily(blocks, most);
  if (best.height > most) take_if_found(best, search_packing(blocks, most, kWorkWithin));
  return best;
}

Placement place(const std::vector<Block>& blocks, int64_t enough) {
  const int64_t bound = liveness_bound(blocks);
  Placement best = place_greedily(blocks, bound);
  if (best.height > enough && enough > bound)
    take_if_found(best, search_packing(blocks, enough, kWorkWithin));
  const bool is_enough = best.height <= enough;
  const int64_t work = int64_t{1} << (is_enough ? 20 : 26);  // about a second at most
  // The bound itself first, then heights between what failed and what was found. What is enough has only the first.
  int64_t failed = bound - 1, next = bound;
  for (int attempt = 0; attempt < (is_enough ? 1 : 4) && best.height > next; ++attempt) {
    if (!take_if_found(best, search_packing(blocks, next, attempt == 0 ? work : work / 4))) failed = next;
    next = failed + 1 + (best.height - failed - 1) / 2;
  }
  return best;
}

TakenBytes largest_free(std::vector<TakenBytes> taken, int64_t size, int64_t alignment, int64_t most) {
  taken.push_back({size, size});
  std::ranges::sort(taken, [](const TakenBytes& a, const TakenBytes& b) { return a.begin < b.begin; });
  TakenBytes best;
  int64_t free = 0;  // all before it is taken, or was looked at
  for (const TakenBytes& next : taken) {
    const int64_t bytes = std::min(next.begin / alignment * alignment - free, most);
    if (bytes > best.end - best.begin) best = {free, free + bytes};
    free = std::max(free, (next.end + alignment - 1) / alignment * alignment);
  }
  return best;
}

}  // namespace gacc::passes::planner
