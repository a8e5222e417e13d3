// When a plateau is one: by hand, as PyTorch's ReduceLROnPlateau with a relative threshold counts.
#include "runtime/run/rates.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gacc {
namespace {

// The cuts after each of these evaluations.
std::vector<int32_t> cuts(const PlateauRules& rules, const std::vector<double>& values) {
  PlateauState state;
  std::vector<int32_t> result;
  for (const double value : values) {
    state = after_evaluation(rules, state, value);
    result.push_back(state.cuts);
  }
  return result;
}

TEST(Plateau, MoreThanPatienceEvaluationsWithoutProgress) {
  EXPECT_EQ(cuts({"loss", 2, 1e-4}, {1, 1, 1, 1, 1, 1, 1}), (std::vector<int32_t>{0, 0, 0, 1, 1, 1, 2}));
  EXPECT_EQ(cuts({"loss", 0, 1e-4}, {1, 1, 0.5, 0.6}), (std::vector<int32_t>{0, 1, 1, 2}));
}

TEST(Plateau, ProgressIsRelativeToTheBest) {
  EXPECT_EQ(cuts({"loss", 0, 0.1}, {1, 0.91, 0.89, 0.81}), (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(cuts({"accuracy", 0, 0.1}, {0.5, 0.54, 0.56, 0.5}), (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(cuts({"accuracy", 0, 0.1}, {0, 0.01}), (std::vector<int32_t>{0, 0}));
}

TEST(Plateau, MetricsThatGrowAndMetricsThatShrink) {
  EXPECT_EQ(cuts({"r2", 0, 0.1}, {-1, -1.05, -0.95, -0.8, 0.5}), (std::vector<int32_t>{0, 1, 2, 2, 2}));
  EXPECT_EQ(cuts({"mae", 0, 0.1}, {1, 0.8, 0.9}), (std::vector<int32_t>{0, 0, 1}));
}

TEST(Plateau, NanIsNoProgress) {
  EXPECT_EQ(cuts({"loss", 1, 0}, {std::nan(""), std::nan(""), 1, 0.5}), (std::vector<int32_t>{0, 1, 1, 1}));
}

TEST(Plateau, EpochsHaveTheUpdatesThatTheTailMakes) {
  EXPECT_EQ(updates_per_epoch({94, 5, 4, Tail::flush}), 5);
  EXPECT_EQ(updates_per_epoch({94, 5, 4, Tail::carry}), 5);
  EXPECT_EQ(updates_per_epoch({94, 5, 4, Tail::drop}), 4);
  EXPECT_EQ(updates_per_epoch({80, 5, 4, Tail::flush}), 4);
  EXPECT_EQ(updates_per_epoch({5, 5, 4, Tail::carry}), 1);
}

}  // namespace
}  // namespace gacc
