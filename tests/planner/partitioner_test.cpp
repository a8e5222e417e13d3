// Plans beside the usual practice (partitioner.h) on the graph of a GPT of 12 blocks, at the same real peak:
// that of the step as it runs, with what is made again and the gradients. Prints the table of
// docs/memory.md.
#include "tests/planner/partitioner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "passes/planner/recompute_search.h"
#include "tests/planner/gpt_graph.h"

namespace gacc::passes::planner {
namespace {

Graph gpt() {
  GptShape shape;
  shape.batch = 4;
  Graph graph;
  std::string problem;
  EXPECT_TRUE(parse_graph(gpt_graph(shape), graph, problem)) << problem;
  return graph;
}

std::vector<char> products(const Graph& graph) {
  std::vector<char> out;
  for (const Operation& op : graph.operations) {
    bool product = false;
    for (const char* part : {"qkv", "scores", "attend", "proj", "fc1", "fc2", "head"})
      product = product || op.name.find(part) != std::string::npos;
    out.push_back(product ? 1 : 0);
  }
  return out;
}

// One row of the table: what the practice takes at a budget of its own, and a plan of the same peak.
struct Row {
  int64_t peak = 0;
  double practice = 0, plan = 0, bound = 0;  // overheads
};

class Partitioner : public ::testing::Test {
 protected:
  Partitioner() : graph_(gpt()), practice_{graph_, products(graph_)}, simulator_(graph_) {
    base_ = simulator_.run(RecomputePlan(graph_)).cost;
  }
  Measure practice(double budget) { return simulator_.run(plan_of(graph_, saved_values(practice_, budget))); }
  double overhead(double cost) const { return cost / base_ - 1; }
  Row row(const Measure& theirs) const {
    const Recompute plan = plan_recompute(graph_, theirs.peak);
    EXPECT_TRUE(plan.feasible);
    return {theirs.peak, overhead(theirs.cost), overhead(plan.cost), overhead(plan.lower_bound)};
  }

  const Graph graph_;
  const Practice practice_;
  Simulator simulator_;
  double base_ = 0;
};

TEST_F(Partitioner, PlansCostLessAtTheSamePeak) {
  for (const double budget : {1.0, 0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0}) {
    const Row row = this->row(practice(budget));
    fmt::print("| {:.2f} | {} MB | {:.2f} % | {:.2f} % | {:.2f} % |\n", budget, row.peak / 1'000'000,
               100 * row.practice, 100 * row.plan, 100 * row.bound);
    EXPECT_LE(row.plan, row.practice) << budget;
    if (budget < 1) {
      EXPECT_LE(row.plan, 0.9 * row.practice) << budget;
    }
    if (budget == 0.1) {
      EXPECT_LE(row.plan, 0.152);
    }
  }
  EXPECT_LE(overhead(plan_recompute(graph_, 785'000'000).cost), 0.118);
}

// A budget that the practice is given says little of its real peak: below some it takes more, not less.
TEST_F(Partitioner, PlansReachBelowItsLeastPeak) {
  Measure least = practice(1);
  for (int i = 0; i < 50; ++i) {
    const Measure measure = practice(0.02 * i);
    if (measure.peak < least.peak) least = measure;
  }
  EXPECT_GT(practice(0).peak, 4 * least.peak);
  const Row row = this->row(least);
  fmt::print("least: | {} MB | {:.2f} % | {:.2f} % | {:.2f} % |\n", row.peak / 1'000'000, 100 * row.practice,
             100 * row.plan, 100 * row.bound);
  EXPECT_LE(row.plan, 0.85 * row.practice);
  for (const int percent : {90, 80, 70}) {
    const Recompute below = plan_recompute(graph_, least.peak / 100 * percent);
    fmt::print("| {} MB | {:.2f} % | {:.2f} % |\n", below.peak / 1'000'000, 100 * overhead(below.cost),
               100 * overhead(below.lower_bound));
    EXPECT_TRUE(below.feasible) << percent;
    EXPECT_LE(overhead(below.cost), 0.25) << percent;
  }
}

}  // namespace
}  // namespace gacc::passes::planner
