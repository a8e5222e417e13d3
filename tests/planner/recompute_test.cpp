// The recompute planner: near the optimum on tiny graphs (by an exhaustive search), sound and near its bound on large
// ones, strict about its files.
#include "passes/planner/recompute_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <random>
#include <tuple>

#include "passes/planner/bound.h"
#include "passes/planner/simulate.h"
#include "tests/planner/gpt_graph.h"
#include "tests/planner/random_graph.h"
#include "tests/planner/replay.h"

namespace gacc::passes::planner {
namespace {

// Least cost by plain search: execute any operation up to the next one, or free any one tensor.
double exhaustive(const Graph& graph, int64_t budget) {
  using State = std::pair<int, uint32_t>;
  std::vector<std::map<uint32_t, double>> best(graph.operations.size() + 1);
  std::priority_queue<std::pair<double, State>, std::vector<std::pair<double, State>>, std::greater<>> open;
  const auto reach = [&](int next, uint32_t live, double cost) {
    const auto [place, fresh] = best[static_cast<size_t>(next)].emplace(live, cost);
    if (!fresh && place->second <= cost) return;
    place->second = cost;
    open.push({cost, {next, live}});
  };
  const auto bytes = [&](uint32_t live) {
    uint32_t storages = 0;
    for (size_t x = 0; x < graph.tensors.size(); ++x) {
      if ((live >> x & 1) != 0) storages |= uint32_t{1} << graph.tensors[x].storage;
    }
    int64_t sum = 0;
    for (size_t x = 0; x < graph.tensors.size(); ++x)
      sum += (storages >> x & 1) != 0 ? graph.tensors[x].bytes : 0;
    return sum;
  };
  uint32_t sources = 0;
  for (size_t x = 0; x < graph.tensors.size(); ++x) {
    if (graph.tensors[x].producer < 0) sources |= uint32_t{1} << x;
  }
  reach(0, sources, 0);
  while (!open.empty()) {
    const auto [cost, state] = open.top();
    const auto [next, live] = state;
    open.pop();
    if (best[static_cast<size_t>(next)][live] < cost) continue;
    if (next > graph.end()) return cost;
    for (int o = 0; o <= next; ++o) {
      bool ready = true;
      for (const int x : graph.operation(o).inputs) ready = ready && (live >> x & 1) != 0;
      uint32_t after = live;
      for (const int x : graph.operation(o).outputs) after |= uint32_t{1} << x;
      if (!ready || bytes(after) > budget || (o < next && after == live)) continue;
      reach(next + (o == next ? 1 : 0), after, cost + graph.operation(o).cost);
    }
    for (uint32_t rest = live & ~sources; rest != 0; rest &= rest - 1)
      reach(next, live & ~(rest & -rest), cost);
  }
  return std::numeric_limits<double>::infinity();
}

void expect_sound(const Graph& graph, const Recompute& plan, int64_t budget, const std::string& what) {
  const Replay judged = replay(graph, print_schedule(graph, plan.schedule));
  EXPECT_EQ(judged.problem, "") << what;
  EXPECT_EQ(judged.peak, plan.peak) << what;
  EXPECT_LE(judged.peak, budget) << what;
  EXPECT_NEAR(judged.cost, plan.cost, 1e-9 * plan.cost) << what;
  EXPECT_LE(plan.lower_bound, plan.cost * (1 + 1e-12)) << what;
  EXPECT_EQ(static_cast<int64_t>(plan.schedule.size()), graph.end() + plan.reruns) << what;
}

struct Tally {
  int infeasible = 0, missed = 0;  // there is no plan; there is one, and none was found
  int costly = 0, optimal = 0;     // plans that recompute, and the cheapest ones among them
  double excess = 0;               // of their costs over the optimum, added up as shares
};

void compare_with_optimum(uint32_t seed, int more_operations, int most_tensors, Tally& tally) {
  std::mt19937 random(seed);
  const int operations = 5 + static_cast<int>(random() % static_cast<uint32_t>(more_operations));
  const std::string text = random_graph(random, operations, most_tensors);
  const Graph graph = parsed(text);
  const int64_t base = plan_recompute(graph, int64_t{1} << 40).base_peak;
  int64_t least = 0;
  for (int o = 0; o <= graph.end(); ++o) least = std::max(least, graph.own_bytes(o));
  const int64_t budget =
      least + static_cast<int64_t>(random() % static_cast<uint32_t>(base - least + 2)) - (seed % 50 == 0);
  const double best = exhaustive(graph, budget);
  const std::string what = fmt::format("seed {}, budget {}\n{}", seed, budget, text);
  const Recompute plan = plan_recompute(graph, budget);
  EXPECT_FALSE(plan.proven && std::isfinite(best)) << what;
  tally.infeasible += std::isfinite(best) ? 0 : 1;
  tally.missed += std::isfinite(best) && !plan.feasible ? 1 : 0;
  if (!plan.feasible) return;
  expect_sound(graph, plan, budget, what);
  ASSERT_GE(plan.cost, best - 1e-9) << what;
  ASSERT_LE(plan.lower_bound, best + 1e-9) << what;
  if (best > plan.base_cost) {
    ++tally.costly;
    tally.optimal += plan.cost < best + 1e-9 ? 1 : 0;
    tally.excess += plan.cost / best - 1;
  }
  // The bound by cuts holds at every point.
  Bounds bounds(graph);
  for (int t = 0; t <= graph.end(); ++t)
    ASSERT_LE(plan.base_cost + bounds.at(t, budget).extra, best + 1e-6) << what << " at " << t;
}

TEST(Recompute, NearTheOptimumOnTinyGraphs) {
  Tally tally;
  for (uint32_t seed = 0; seed < 1000 && !HasFatalFailure(); ++seed) compare_with_optimum(seed, 6, 11, tally);
  EXPECT_GT(tally.infeasible, 10);
  EXPECT_GT(tally.costly, 200);
  EXPECT_LE(tally.missed, 30);
  EXPECT_GE(tally.optimal * 100, tally.costly * 90) << tally.optimal << " of " << tally.costly;
  EXPECT_LE(tally.excess, 0.01 * tally.costly);
}

// The exhaustive search takes a third of a second for each of them: GACC_TINY_GRAPHS=1000 tries that many.
TEST(Recompute, NearTheOptimumOnGraphsOf24Tensors) {
  const char* many = std::getenv("GACC_TINY_GRAPHS");
  const auto graphs = static_cast<uint32_t>(many == nullptr ? 20 : std::strtoul(many, nullptr, 10));
  Tally tally;
  for (uint32_t seed = 0; seed < graphs && !HasFatalFailure(); ++seed)
    compare_with_optimum(seed, 16, 23, tally);
  EXPECT_GT(tally.costly, graphs / 5);
  EXPECT_LE(tally.excess, 0.02 * tally.costly);
}

TEST(Recompute, SoundOnRandomGraphs) {
  int found = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::string text = random_graph(random, 40 + static_cast<int>(random() % 40), 200);
    const Graph graph = parsed(text);
    const int64_t base = plan_recompute(graph, int64_t{1} << 40).base_peak;
    const int64_t budget = base * static_cast<int64_t>(50 + random() % 50) / 100;
    const Recompute plan = plan_recompute(graph, budget);
    if (!plan.feasible) continue;
    ++found;
    expect_sound(graph, plan, budget, fmt::format("seed {}, budget {}", seed, budget));
  }
  EXPECT_GT(found, 100);
}

TEST(Recompute, NearTheBoundOnTransformers) {
  GptShape shape;
  const Graph graph = parsed(gpt_graph(shape));
  const int64_t base = plan_recompute(graph, int64_t{1} << 60).base_peak;
  for (const int percent : {90, 70, 50, 30, 20}) {
    const int64_t budget = base / 100 * percent;
    const Recompute plan = plan_recompute(graph, budget);
    ASSERT_TRUE(plan.feasible) << percent;
    expect_sound(graph, plan, budget, fmt::format("{} %", percent));
    EXPECT_LE(plan.gap(), percent == 20 ? 0.008 : 0.005) << percent;
  }
}

// At each peak at most this share of the step's time runs again. What frameworks do (a minimum cut decides what is
// saved, then a knapsack) takes a sixth more, and more than four times as much memory where it keeps nothing.
TEST(Recompute, CostsLessThanTheUsualPractice) {
  GptShape shape;
  shape.batch = 4;
  const Graph graph = parsed(gpt_graph(shape));
  for (const auto& [megabytes, most] :
       {std::pair(785, 0.118), {572, 0.152}, {553, 0.156}, {497, 0.25}, {387, 0.25}}) {
    const Recompute plan = plan_recompute(graph, int64_t{1'000'000} * megabytes);
    ASSERT_TRUE(plan.feasible) << megabytes;
    EXPECT_LE(plan.cost / plan.base_cost - 1, most) << megabytes;
  }
}

// Blocks x -> up -> act -> down + x, and their gradients.
std::string chain_graph(int blocks) {
  int tensors = 0;
  std::string text = "OP 4 0 in 0 1 0 64 -1\n";
  int x = tensors++;
  std::vector<std::array<int, 3>> made;
  for (int i = 0; i < blocks; ++i) {
    const int up = tensors++, act = tensors++, out = tensors++;
    text += fmt::format("OP 4 0 up{} 1 {} 1 {} 128 -1\n", i, x, up);
    text += fmt::format("OP 1 0 act{} 1 {} 1 {} 128 -1\n", i, up, act);
    text += fmt::format("OP 4 0 down{} 2 {} {} 1 {} 64 -1\n", i, act, x, out);
    made.push_back({x, up, act});
    x = out;
  }
  int d = tensors++;
  text += fmt::format("OP 1 0 loss 1 {} 1 {} 64 -1\n", x, d);
  for (int i = blocks; i-- > 0;) {
    const auto [in, up, act] = made[static_cast<size_t>(i)];
    const int d_act = tensors++, d_up = tensors++, d_in = tensors++;
    text += fmt::format("OP 4 1 d_act{} 1 {} 1 {} 128 -1\n", i, d, d_act);
    text += fmt::format("OP 4 1 w_down{} 2 {} {} 0\n", i, d, act);
    text += fmt::format("OP 1 1 d_up{} 2 {} {} 1 {} 128 -1\n", i, up, d_act, d_up);
    text += fmt::format("OP 4 1 w_up{} 2 {} {} 0\n", i, in, d_up);
    text += fmt::format("OP 4 1 d_in{} 2 {} {} 1 {} 64 -1\n", i, d_up, d, d_in);
    d = d_in;
  }
  return text + fmt::format("GET {} 1\n", d);
}

// Little memory: whole blocks run a third time. What was found with blocks as a rough model, bytes counted in
// slots, is given behind each.
TEST(Recompute, DeepBudgetsOfAChain) {
  for (const auto& [blocks, percent, gap] :
       {std::tuple(16, 20, 0.009) /* 0.011 */, std::tuple(16, 15, 0.105) /* 0.105 */,
        std::tuple(16, 12, 0.6) /* 1.3 */, std::tuple(160, 5, 0.012) /* 0.2 */}) {
    const Graph graph = parsed(chain_graph(blocks));
    const int64_t budget = plan_recompute(graph, int64_t{1} << 40).base_peak * percent / 100;
    const Recompute plan = plan_recompute(graph, budget);
    ASSERT_TRUE(plan.feasible) << percent;
    expect_sound(graph, plan, budget, fmt::format("{} blocks, {} %", blocks, percent));
    EXPECT_LE(plan.gap(), gap) << blocks << " blocks, " << percent << " %";
  }
}

// Of a tensor that goes once and stays then: x is made again for u, and held for v.
TEST(Simulator, HoldsWhatAReplayMakes) {
  const Graph graph = parsed(
      "OP 1 0 x 0 1 1 4 -1\nOP 1 0 u 1 1 1 2 4 -1\nOP 1 0 v 1 1 1 3 4 -1\n"
      "OP 1 1 read_u 1 2 0\nOP 1 1 read_v 1 3 0\n");
  RecomputePlan plan(graph);
  plan.intervals[static_cast<size_t>(plan.first(1))] = plan.intervals[static_cast<size_t>(plan.first(2))] =
      Interval::drop;
  EXPECT_EQ(Simulator(graph).run(plan).reruns, 4);
  plan.held[0] = 2;
  EXPECT_EQ(Simulator(graph).run(plan).reruns, 3);
}

TEST(Recompute, TheSameInputGivesTheSamePlan) {
  GptShape shape;
  shape.blocks = 4;
  const Graph graph = parsed(gpt_graph(shape));
  const int64_t budget = plan_recompute(graph, int64_t{1} << 60).base_peak / 2;
  EXPECT_EQ(print_schedule(graph, plan_recompute(graph, budget).schedule),
            print_schedule(graph, plan_recompute(graph, budget).schedule));
}

TEST(Graph, MistakesAreNamedByLine) {
  const auto problem_of = [](std::string_view text) {
    Graph graph;
    std::string problem;
    EXPECT_FALSE(parse_graph(text, graph, problem)) << text;
    return problem;
  };
  EXPECT_EQ(problem_of(""), "1: the file has no operation");
  EXPECT_EQ(problem_of("FOO\n"), "1: a line starts with OP or GET, not `FOO`");
  EXPECT_EQ(problem_of("OP 1 0 a 0\n"), "1: the line ends where the number of outputs should stand");
  EXPECT_EQ(problem_of("OP 1 0 a 0 1 0 x -1\n"), "1: the bytes of an output is `x`");
  EXPECT_EQ(problem_of("OP nan 0 a 0 0\n").substr(0, 2), "1:");
  EXPECT_EQ(problem_of("OP 1 2 a 0 0\n"), "1: is_backward is 2, not 0 or 1");
  EXPECT_EQ(problem_of("OP 1 0 a 999 0\n"), "1: the number of inputs is 999, more than the line holds");
  EXPECT_EQ(problem_of("OP 1 0 a 0 1 7 4 9\n"), "1: tensor 7 is an alias of 9, which is not known here");
  EXPECT_EQ(problem_of("OP 1 0 a 1 7 1 7 4 -1\n").substr(0, 16), "1: tensor 7 is m");
  EXPECT_EQ(problem_of("OP 1 0 a 0 1 7 4 -1\nOP 1 0 b 0 1 7 4 -1\n"),
            "2: tensor 7 is made a second time; operation 0 made it");
  EXPECT_EQ(problem_of("OP 1 0 a 0 0\nGET 5 1\n"), "2: GET names tensor 5, which no operation has");
}

}  // namespace
}  // namespace gacc::passes::planner
