// The simulator for small changes against the one that runs the whole program.
#include "passes/planner/incremental.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/planner/random_graph.h"

namespace gacc::passes::planner {
namespace {

// Whether the schedule has a step, or the end, at which these tensors live, of those that take bytes.
bool live_together(const Graph& graph, const std::vector<Step>& schedule, const std::set<int>& wanted) {
  std::set<int> live;
  const auto same = [&] {
    std::set<int> with_bytes;
    for (const int x : live)
      if (graph.tensor(graph.tensor(x).storage).bytes > 0) with_bytes.insert(x);
    return with_bytes == wanted;
  };
  for (const Step& step : schedule) {
    const auto& made = graph.operation(step.operation).outputs;
    live.insert(made.begin(), made.end());
    if (same()) return true;
    for (const int x : step.drops) live.erase(x);
  }
  return same();
}

void expect_same(const Graph& graph, Incremental& now, Simulator& whole, const std::string& what) {
  std::vector<Step> schedule;
  const Measure measure = whole.run(now.plan(), &schedule);
  ASSERT_EQ(now.peak(), measure.peak) << what;
  ASSERT_NEAR(now.cost(), measure.cost, 1e-9 * (1 + measure.cost)) << what;
  std::set<int> residents;
  for (const Resident& r : now.residents()) {
    EXPECT_TRUE(residents.insert(r.tensor).second) << what;
    if (r.interval < 0) continue;
    const int use = r.interval - now.plan().first(r.tensor);
    ASSERT_TRUE(use >= 0 && use < static_cast<int>(graph.tensor(r.tensor).uses.size())) << what;
    EXPECT_EQ(r.next, graph.tensor(r.tensor).uses[static_cast<size_t>(use)]) << what;
  }
  EXPECT_TRUE(live_together(graph, schedule, residents)) << what;
}

// One choice, at random.
void change(std::mt19937& random, const Graph& graph, Incremental& now) {
  constexpr Interval kIntervals[] = {Interval::keep, Interval::keep, Interval::drop,
                                     Interval::drop, dropped(2),     Interval::drop_again};
  if (random() % 4 != 0 && !now.plan().intervals.empty()) {
    const size_t gap = random() % now.plan().intervals.size();
    int x = 0;
    while (x + 1 < static_cast<int>(graph.tensors.size()) && now.plan().first(x + 1) <= static_cast<int>(gap))
      ++x;
    if (!graph.once(x)) now.set_interval(static_cast<int>(gap), kIntervals[random() % 6]);
  } else {
    const int x = static_cast<int>(random() % graph.tensors.size());
    if (!graph.once(x)) now.set_held(x, static_cast<int>(random() % 3));
  }
}

TEST(Incremental, SaysWhatTheSimulatorSays) {
  for (uint32_t seed = 0; seed < 150 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 random(seed);
    Graph graph = parsed(random_graph(random, 5 + static_cast<int>(random() % 40), 200));
    if (seed % 2 == 0) add_what_a_pass_says(random, graph);
    Simulator whole(graph);
    Incremental now(graph);
    RecomputePlan committed = now.plan();
    for (int turn = 0; turn < 120 && !testing::Test::HasFailure(); ++turn) {
      for (uint32_t n = random() % 3; n > 0; --n) change(random, graph, now);
      const std::string what = "seed " + std::to_string(seed) + ", turn " + std::to_string(turn);
      expect_same(graph, now, whole, what);
      if (random() % 2 == 0) {
        now.undo();
        EXPECT_EQ(now.plan().intervals, committed.intervals) << what;
        EXPECT_EQ(now.plan().held, committed.held) << what;
        expect_same(graph, now, whole, what + ", undone");
      }
      if (random() % 16 == 0) now.change(committed);
      now.commit();
      committed = now.plan();
    }
    Incremental fresh(graph);
    fresh.change(now.plan());
    EXPECT_EQ(fresh.cost(), now.cost()) << "seed " << seed;  // to the last bit
    EXPECT_EQ(fresh.peak(), now.peak()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gacc::passes::planner
