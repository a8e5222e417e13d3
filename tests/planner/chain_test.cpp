// Chains: plans are near the optimum, which a recursion over checkpoints finds that knows nothing of the planner, and a
// search of all schedules confirms. The dynamic program over blocks against Revolve's closed form.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <random>
#include <tuple>

#include "passes/planner/recompute_search.h"
#include "passes/planner/reversal.h"
#include "tests/planner/random_graph.h"
#include "tests/planner/replay.h"

namespace gacc::passes::planner {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// What the backward step i reads of the forward pass: y_i-1 (a product), y_i (a relu), both.
enum class Reads { in, out, both };
constexpr Reads kReads[] = {Reads::in, Reads::out, Reads::both};

// y_0 is a source. Index i: y_i, the step that makes it, the gradient of y_i and the step back from it.
struct Chain {
  Reads reads = Reads::in;
  std::vector<int> bytes{}, gradient{};
  std::vector<double> forward{}, backward{};
  int steps() const { return static_cast<int>(bytes.size()) - 1; }

  std::string text() const {
    const int n = steps();
    std::string text;
    for (int i = 1; i <= n; ++i)
      text += fmt::format("OP {} 0 f{} 1 {} 1 {} {} -1\n", forward[i], i, i - 1, i, bytes[i]);
    text += fmt::format("OP 1 1 turn 1 {} 1 {} {} -1\n", n, 2 * n + 1, gradient[n]);
    for (int i = n; i > 0; --i) {
      text += fmt::format("OP {} 1 b{} {} {}", backward[i], i, reads == Reads::both ? 3 : 2, n + 1 + i);
      if (reads != Reads::out) text += fmt::format(" {}", i - 1);
      if (reads != Reads::in) text += fmt::format(" {}", i);
      text += fmt::format(" 1 {} {} -1\n", n + i, gradient[i - 1]);
    }
    return text + fmt::format("GET {} 1\n", n + 1);
  }
};

// Everything of one size and cost, or drawn from 1 .. most.
Chain chain_of(Reads reads, int steps, int bytes, std::mt19937* costs = nullptr,
               std::mt19937* sizes = nullptr, std::mt19937* gradients = nullptr) {
  const auto draw = [](std::mt19937* random, int otherwise, unsigned most) {
    return random == nullptr ? otherwise : 1 + static_cast<int>((*random)() % most);
  };
  Chain chain;
  chain.reads = reads;
  for (int i = 0; i <= steps; ++i) {
    chain.bytes.push_back(draw(sizes, bytes, 6));
    chain.gradient.push_back(gradients == nullptr ? bytes : draw(gradients, 0, 7) - 1);
    chain.forward.push_back(draw(costs, 1, 9));
    chain.backward.push_back(draw(costs, 1, 9));
  }
  return chain;
}

// One operation of the backward pass: the tensors of the forward pass that it reads (low = high: one; 0: the
// source), gradients that are there before it and while it runs.
struct Reader {
  int low = 0, high = 0, before = 0, during = 0;
};
std::vector<Reader> readers_of(const Chain& chain) {
  const int n = chain.steps();
  std::vector<Reader> out = {{n, n, 0, chain.gradient[n]}};
  for (int i = n; i > 0; --i) {
    const int low = chain.reads == Reads::out ? i : i - 1, high = chain.reads == Reads::in ? i - 1 : i;
    out.push_back(
        {low == 0 ? high : low, high, chain.gradient[i], chain.gradient[i] + chain.gradient[i - 1]});
  }
  return out;
}

// The least cost of all forward steps by checkpoints: y_base stays; the readers from `next` on of what is
// behind it follow, with `free` bytes beside it; y_high of the next is there, if `held`.
class Checkpoints {
 public:
  explicit Checkpoints(const Chain& chain) : chain_(chain), readers_(readers_of(chain)) {}
  double cost(int64_t budget) {
    for (const Reader& reader : readers_)  // those that read the source alone
      if (reader.high == 0 && reader.during > budget) return kNever;
    return least(0, 0, static_cast<int>(budget), false);
  }

 private:
  double least(int base, int next, int free, bool held) {
    if (next == static_cast<int>(readers_.size()) || readers_[next].high <= base) return 0;
    const auto [place, fresh] = known_.emplace(std::tuple(base, next, free, held), kNever);
    if (!fresh) return place->second;
    const Reader& reader = readers_[next];
    const int top = reader.high, own = chain_.bytes[top];
    double best = kNever;
    if (held && (reader.low == top || reader.low == base)) {
      if (own + reader.during <= free) best = std::min(best, least(base, next + 1, free, follows(next, top)));
    } else {
      // Forward to y_c, which stays, or to y_top for this reader.
      const int beside = reader.before + (held ? own : 0);
      double run = 0;
      for (int c = base + 1; c <= top; ++c) {
        run += chain_.forward[c];
        if (beside + (c - 1 > base ? chain_.bytes[c - 1] : 0) + chain_.bytes[c] > free) break;
        if (c == top) {
          if (!held && (reader.low == top || reader.low == base))
            best = std::min(best, run + least(base, next, free, true));
          continue;
        }
        const double above = run + least(c, next, free - chain_.bytes[c], held);
        if (above >= best) continue;
        int after = next;
        while (after < static_cast<int>(readers_.size()) && readers_[after].high > c) ++after;
        best = std::min(best, above + least(base, after, free, follows(after - 1, c)));
      }
    }
    known_[{base, next, free, held}] = best;
    if (held) best = std::min(best, least(base, next, free, false));  // y_top goes
    return known_[{base, next, free, held}] = best;
  }
  // Whether the reader behind `reader` needs y_x as its later tensor.
  bool follows(int reader, int x) const {
    return reader + 1 < static_cast<int>(readers_.size()) && readers_[reader + 1].high == x;
  }

  const Chain& chain_;
  std::vector<Reader> readers_;
  std::map<std::tuple<int, int, int, bool>, double> known_;
};

// The least cost of all forward steps over all schedules in which the backward pass runs once: shortest paths
// over (readers done, set of y).
double over_all_sets(const Chain& chain, int64_t budget) {
  const std::vector<Reader> readers = readers_of(chain);
  const int n = chain.steps();
  const auto fits = [&](unsigned set, int others) {
    int64_t bytes = others;
    for (int i = 1; i <= n; ++i) bytes += (set >> i & 1) != 0 ? chain.bytes[i] : 0;
    return bytes <= budget;
  };
  std::map<unsigned, double> now = {{1, 0}};  // y_0 is always there
  for (const Reader& reader : readers) {
    using Entry = std::pair<double, unsigned>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    std::map<unsigned, double> best, after;
    const auto reach = [&](unsigned set, double cost) {
      const auto [place, fresh] = best.emplace(set, cost);
      if (!fresh && place->second <= cost) return;
      place->second = cost;
      open.push({cost, set});
    };
    for (const auto& [set, cost] : now) reach(set, cost);
    while (!open.empty()) {
      const auto [cost, set] = open.top();
      open.pop();
      if (best[set] < cost) continue;
      if ((set >> reader.low & 1) != 0 && (set >> reader.high & 1) != 0 && fits(set, reader.during))
        after.emplace(set, cost);  // the first time is the cheapest
      for (int i = 1; i <= n; ++i) {
        const unsigned bit = 1U << i;
        if ((set & bit) != 0)
          reach(set & ~bit, cost);
        else if ((set >> (i - 1) & 1) != 0 && fits(set | bit, reader.before))
          reach(set | bit, cost + chain.forward[i]);
      }
    }
    now = std::move(after);
  }
  double least = kNever;
  for (const auto& [set, cost] : now) least = std::min(least, cost);
  return least;
}

Recompute sound_plan(const Graph& graph, int64_t budget, const std::string& what) {
  const Recompute plan = plan_recompute(graph, budget);
  if (!plan.feasible) return plan;
  const Replay judged = replay(graph, print_schedule(graph, plan.schedule));
  EXPECT_EQ(judged.problem, "") << what;
  EXPECT_LE(judged.peak, budget) << what;
  EXPECT_NEAR(judged.cost, plan.cost, 1e-9 * plan.cost) << what;
  EXPECT_LE(plan.lower_bound, plan.cost) << what;
  return plan;
}

constexpr int kCasesForOneSearch = 40;  // a search takes a tenth of a second

// How far plans were from the optimum, in shares of it, and how many there were.
struct Excess {
  int cases = 0, plans = 0, missed = 0;
  double sum = 0, most = 0;
};

// `least`: of the forward steps.
void expect_near(const Chain& chain, int64_t budget, double least, Excess& excess) {
  if (excess.cases++ % kCasesForOneSearch != 0) return;
  const std::string text = chain.text();
  const Graph graph = parsed(text);
  const std::string what = fmt::format("budget {}\n{}", budget, text);
  double backward = 0;
  for (int o = chain.steps(); o < graph.end(); ++o) backward += graph.operation(o).cost;
  const double optimum = backward + least;
  const Recompute plan = sound_plan(graph, budget, what);
  ASSERT_LE(plan.feasible, std::isfinite(least)) << what;
  ASSERT_FALSE(plan.proven && std::isfinite(least)) << what;
  excess.missed += std::isfinite(least) && !plan.feasible ? 1 : 0;
  if (!plan.feasible) return;
  ASSERT_GE(plan.cost, optimum * (1 - 1e-9)) << what;
  ++excess.plans;
  excess.sum += plan.cost / optimum - 1;
  excess.most = std::max(excess.most, plan.cost / optimum - 1);
}

void expect_small(const Excess& excess) {
  EXPECT_LE(excess.sum, 0.005 * excess.plans) << excess.sum << " of " << excess.plans;
  EXPECT_LE(excess.most, 0.1);
  EXPECT_LE(excess.missed, 0);
}

// Steps back of a chain of `length` with `slots` checkpoints, the first state in one of them and the current
// one beside them: t = r length - C(slots + r, r - 1) forward steps, where C(slots + r - 1, slots) < length
// <= C(slots + r, slots).
int64_t revolve(int64_t length, int64_t slots) {
  const auto choose = [](int64_t n, int64_t k) {
    int64_t product = 1;
    for (int64_t i = 1; i <= k; ++i) product = product * (n - k + i) / i;
    return k < 0 ? 0 : product;
  };
  int64_t r = 0;
  while (choose(slots + r, slots) < length) ++r;
  return r * length - choose(slots + r, r - 1);
}

TEST(Chain, RevolveInClosedForm) {
  EXPECT_EQ(revolve(4, 2), 4);  // 2 to the middle, 1 + 1
  for (int length = 2; length <= 48; ++length) {
    std::vector<Stage> stages(static_cast<size_t>(length));
    for (Stage& stage : stages) {
      stage.kind = 1;
      stage.cost = stage.after = 1;
      stage.passing = -1;  // a state takes the place of the one before
      stage.passed = stage.again[0] = {Option{}};
    }
    stages.back().cost = stages.back().after = 0;
    for (int slots = 1; slots < length; ++slots) {
      const Reversal reversal(stages, slots, slots, slots);
      ASSERT_TRUE(reversal.solved());
      ASSERT_EQ(reversal.extra(slots) + length - 1, static_cast<double>(revolve(length, slots)))
          << length << " steps, " << slots << " slots";
    }
  }
}

// Steps of one cost and size: 8 to 48 of them in 3 slots to all.
TEST(Chain, EqualStepsCostAlmostTheOptimum) {
  Excess excess;
  for (const Reads reads : kReads) {
    for (const int steps : {8, 9, 13, 16, 24, 33, 48}) {
      const Chain chain = chain_of(reads, steps, 1);
      Checkpoints checkpoints(chain);
      for (int slots = 3; slots <= steps; ++slots) expect_near(chain, slots, checkpoints.cost(slots), excess);
    }
  }
  expect_small(excess);
}

// The same with other costs at every step, and gradients of other sizes.
TEST(Chain, StepsOfAnyCostCostAlmostTheOptimum) {
  Excess excess;
  std::mt19937 random(1);
  for (const Reads reads : kReads) {
    for (const int steps : {8, 12, 16, 24, 36, 48}) {
      const Chain chain = chain_of(reads, steps, 3, &random, nullptr, &random);
      Checkpoints checkpoints(chain);
      for (int slots = 3; slots <= steps; slots += 1 + slots / 6) {
        const int64_t budget = 3 * slots + static_cast<int>(random() % 3);
        expect_near(chain, budget, checkpoints.cost(budget), excess);
      }
    }
  }
  expect_small(excess);
}

TEST(Chain, NoScheduleIsCheaper) {
  Excess excess;
  std::mt19937 random(2);
  for (int turn = 0; turn < 12; ++turn) {
    const Chain chain = chain_of(kReads[turn % 3], 12, 2, &random, nullptr, &random);
    const int64_t budget = 6 + static_cast<int>(random() % 14);
    const double least = over_all_sets(chain, budget);
    EXPECT_EQ(Checkpoints(chain).cost(budget), least);
    expect_near(chain, budget, least, excess);
  }
  expect_small(excess);
}

// Tensors of several sizes: little worse than the best by checkpoints, which need not be the best of all.
TEST(Chain, StepsOfAnySize) {
  std::mt19937 random(3);
  for (const Reads reads : kReads) {
    for (const int steps : {13, 24, 36}) {
      const Chain chain = chain_of(reads, steps, 3, &random, &random, &random);
      const std::string text = chain.text();
      const Graph graph = parsed(text);
      Checkpoints checkpoints(chain);
      for (int turn = 0; turn < 4; ++turn) {
        const int64_t budget = 16 + static_cast<int>(random() % static_cast<uint32_t>(3 * steps));
        const double least = checkpoints.cost(budget);
        const std::string what = fmt::format("budget {}\n{}", budget, text);
        const Recompute plan = sound_plan(graph, budget, what);
        if (std::isinf(least)) continue;
        ASSERT_TRUE(plan.feasible) << what;
        double backward = 0;
        for (int o = steps; o < graph.end(); ++o) backward += graph.operation(o).cost;
        EXPECT_LE(plan.cost, 1.1 * (backward + least)) << what;
      }
    }
  }
}

}  // namespace
}  // namespace gacc::passes::planner
