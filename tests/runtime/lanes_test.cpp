// Lanes: who holds which nodes of the tree when. What `close` is asked to do gives the sum that the definition
// gives, for every number of ranks, of launches in the window and of launches there are.
#include "runtime/ranks/lanes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "passes/accumulate.h"

namespace gacc {
namespace {

struct Numbers {
  uint64_t state = 1;
  float next() {
    state = state * 6364136223846793005 + 1442695040888963407;
    return std::ldexp(static_cast<float>(state >> 40) / 0x1p24F - 0.5F,
                      static_cast<int>(state >> 8) % 12 - 6);
  }
};

// By the words of lanes.h: nothing is added for a lane without a launch.
std::optional<float> defined(const std::vector<float>& terms, int64_t launches, int64_t lanes, LaneRange of) {
  if (of.high - of.low == 1) {
    std::optional<float> sum;
    for (size_t p = 0; p < terms.size(); ++p)
      if (lane_of(static_cast<int64_t>(p), launches, lanes) == of.low) sum = sum ? *sum + terms[p] : terms[p];
    return sum;
  }
  const int64_t middle = (of.low + of.high) / 2;
  const auto left = defined(terms, launches, lanes, {of.low, middle}),
             right = defined(terms, launches, lanes, {middle, of.high});
  if (!left || !right) return left ? left : right;
  return *left + *right;
}

// One rank as the device does it: an accumulator and places, which `close` moves.
struct Rank {
  LaneStack stack;
  float open = 0;
  std::vector<float> places;

  void close(const std::optional<LaneStack::Close>& close) {
    if (!close) return;
    for (int64_t d = close->last; d-- > close->first;) open = places.at(static_cast<size_t>(d)) + open;
    if (!close->keep) return;
    places.at(static_cast<size_t>(close->first)) = open;
    open = 0;
  }
};

TEST(Lanes, EveryNumberOfRanksHasTheSumOfTheDefinition) {
  Numbers numbers;
  for (int64_t launches = 1; launches <= 20; ++launches) {
    for (int64_t lanes = 1; lanes <= std::min<int64_t>(launches, 16); lanes *= 2) {
      for (int64_t there = 1; there <= launches; ++there) {
        std::vector<float> terms;
        for (int64_t p = 0; p < there; ++p) terms.push_back(numbers.next());
        const float wanted = *defined(terms, launches, lanes, {0, lanes});
        for (int64_t ranks = 1; ranks <= lanes; ++ranks) {
          std::vector<LaneRange> nodes;
          std::vector<float> sums;
          for (int64_t r = 0; r < ranks; ++r) {
            const LaneRange mine = lanes_of_rank(r, lanes, ranks);
            Rank rank{LaneStack(lanes, mine), 0,
                      std::vector<float>(static_cast<size_t>(passes::most_nodes(lanes, ranks) - 1))};
            for (size_t p = 0; p < terms.size(); ++p) {
              const int64_t lane = lane_of(static_cast<int64_t>(p), launches, lanes);
              EXPECT_EQ(lane * ranks / lanes == r, mine.contains(lane));
              if (!mine.contains(lane)) continue;
              rank.close(rank.stack.open(lane));
              rank.open += terms[p];
            }
            // Read without being finished, as for an open window ...
            const std::vector<LaneRange> held = rank.stack.nodes();
            if (held.empty()) continue;
            std::vector<float> parts(rank.places.begin(),
                                     rank.places.begin() + static_cast<int64_t>(held.size()) - 1);
            parts.push_back(rank.open);
            const auto add = [](float left, float right, LaneRange) { return left + right; };
            if (ranks == 1) {
              EXPECT_EQ(*tree_sum<float>({0, lanes}, held, std::span<float>(parts), add), wanted);
            }
            // ... and finished: the largest nodes within the rank's lanes, the last one in the accumulator.
            rank.close(rank.stack.finish());
            for (const LaneRange node : rank.stack.nodes()) EXPECT_EQ(node, node_in(mine, node.low, lanes));
            for (size_t d = 0; d < rank.stack.nodes().size(); ++d) {
              nodes.push_back(rank.stack.nodes()[d]);
              sums.push_back(d + 1 < rank.stack.nodes().size() ? rank.places[d] : rank.open);
            }
          }
          const auto add = [](float left, float right, LaneRange) { return left + right; };
          EXPECT_EQ(*tree_sum<float>({0, lanes}, nodes, std::span<float>(sums), add), wanted)
              << launches << " launches, " << there << " there, " << lanes << " lanes, " << ranks << " ranks";
        }
      }
    }
  }
}

TEST(Lanes, ThePlanHasAPlaceForEveryNodeThatWaits) {
  for (int64_t lanes = 1; lanes <= 64; lanes *= 2) {
    int64_t worst = 1;
    for (int64_t ranks = lanes; ranks >= 1; --ranks) {
      int64_t most = 0;
      for (int64_t r = 0; r < ranks; ++r)
        most = std::max(most, LaneStack::places(lanes, lanes_of_rank(r, lanes, ranks)));
      EXPECT_EQ(passes::most_nodes(lanes, ranks), most + 1);
      worst = std::max(worst, most + 1);
      EXPECT_EQ(passes::most_nodes_from(lanes, ranks), worst)
          << lanes << " lanes from " << ranks << " ranks on";
    }
    EXPECT_EQ(passes::most_nodes(lanes, 1), std::bit_width(static_cast<uint64_t>(lanes)));
  }
}

TEST(Lanes, AnEvaluationMayLeaveLanesOut) {
  // Two launches over four lanes are in lanes 0 and 2.
  EXPECT_EQ(lane_of(0, 2, 4), 0);
  EXPECT_EQ(lane_of(1, 2, 4), 2);
  const std::vector<LaneRange> lanes = {{0, 1}, {2, 3}};
  std::vector<float> sums = {-0.0F, -0.0F};
  const auto add = [](float left, float right, LaneRange) { return left + right; };
  EXPECT_TRUE(std::signbit(*tree_sum<float>({0, 4}, lanes, std::span<float>(sums), add)));
  EXPECT_EQ(tree_sum<float>({0, 4}, std::span<const LaneRange>(), std::span<float>(), add), std::nullopt);
}

}  // namespace
}  // namespace gacc
