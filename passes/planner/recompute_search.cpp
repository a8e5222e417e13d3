// 1. Bounds by minimum cuts at several points of the program; their solutions are seeds.
// 2. A seed that fits beside one that does not: the choices of the first are taken over for a growing part of
//    the program, until that fits.
// 3. Repair: at the fullest step, what lives there only because the plan wants it goes, least cost per useful
//    byte first. Then in reverse: drops that the budget does not need are undone, in groups.
// 4. Restarts from the best plans with the drops of a part of the program undone, or a few at random, or a
//    part taken from another plan, and noise in the choice of the others.
#include "passes/planner/recompute_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "passes/planner/blocks.h"
#include "passes/planner/bound.h"
#include "passes/planner/incremental.h"
#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

namespace {

// Distances of the best plan's cost from the proven bound, as shares of the cost without recompute.
constexpr double kGapThatEnds = 5e-5;       // at most this: the search is over
constexpr double kGapThatEndsLarge = 2e-4;  // of more than kLargeGraph operations
constexpr size_t kLargeGraph = 1000;
constexpr double kGapForBlockChain = 0.002;  // above it, whole blocks are also planned as a chain
constexpr double kGapForLongRestarts =
    0.005;  // above it, restarts may take three times as long; below, few in a large graph
constexpr double kCostRounding = 1e-12;    // relative: costs no further apart than this are equal
constexpr size_t kMostSeeds = 3;           // points whose cuts are tried; 1 without effort
constexpr size_t kRestartPlans = 6;        // plans that restarts begin with, the best found
constexpr int kMostMakingsBeforeHeld = 4;  // a tensor is held from its n-th making on, n up to this
// For each effort: so many restarts in a row without a better plan end a round. Near: where is_near() says so.
constexpr int kIdleRestarts = 150, kIdleRestartsNear = 40;
// Shares of the search's work: of one repair, and of a round without a better plan.
constexpr int64_t kRepairsInAll = 16, kFruitlessRoundsInAll = 8;
// Storages that repair drops before it looks at costs anew: one in so many of those that live.
constexpr size_t kChoicesForOneDrop = 64;
// Restarts: of five, two undo a few drops, two undo those of a part of the program, and one crosses two plans. Noise
// grows in five steps, one every five restarts. Every second one repairs to a few hundredths less than the budget.
constexpr int kRestartKinds = 5, kUndoSome = 2, kUndoPart = 4, kNoiseSteps = 5, kSlackSteps = 6;
// Each round's noise in the choice of what is dropped: a factor of 1 +- noise on costs.
constexpr double kRoundNoise[] = {0.1, 0.05, 0.15, 0.08, 0.12, 0.03};

// The manner in which a plan is made to fit; a restart changed the plan `known`.
struct Manner {
  double noise = 0;
  bool by_kind = false;  // one noise for all that is as large and costs as much: in equal blocks
  int64_t slack = 0;     // repair goes so far below the budget
  const RecomputePlan* known = nullptr;
};

class Planner {
 public:
  Planner(Bounds& bounds, int64_t budget, int effort, const Recompute* above)
      : bounds_(bounds),
        graph_(bounds.graph()),
        budget_(budget),
        effort_(effort),
        above_(above),
        simulator_(graph_),
        now_(graph_),
        random_(1),
        best_(graph_) {
    std::map<std::pair<int64_t, double>, int> kinds;
    for (const Tensor& x : graph_.tensors) {
      const double again = x.producer < 0 ? 0 : graph_.operation(x.producer).again_cost();
      kind_.push_back(kinds.emplace(std::pair(x.bytes, again), static_cast<int>(kinds.size())).first->second);
    }
    kinds_ = kinds.size();
    seen_.assign(graph_.operations.size(), 0);
    // About 0.1 seconds and 0.3 milliseconds per operation, at 80 million visits a second.
    limit_ = static_cast<int64_t>(1e7 + 2.5e4 * static_cast<double>(graph_.operations.size())) *
             std::max(effort, 1);
  }

  Recompute solve() {
    Recompute out;
    out.base_cost = graph_.base_cost();
    const RecomputePlan nothing(graph_);
    const Measure base = simulator_.run(nothing);
    out.base_peak = base.peak;
    out.lower_bound = out.base_cost;
    if (base.peak <= budget_) {
      take(nothing, base);
      return finish(std::move(out));
    }
    for (const int64_t least : graph_.least_bytes()) {
      if (least > budget_) {
        out.proven = true;
        return out;
      }
    }
    std::vector<PointBound> bounds;
    for (const int point : bounds_.points()) {
      bounds.push_back(bounds_.at(point, budget_));
      out.lower_bound = std::max(out.lower_bound, out.base_cost + bounds.back().extra);
    }
    enough_ =
        std::max(out.lower_bound + (large() ? kGapThatEndsLarge : kGapThatEnds) * out.base_cost, floor());
    std::ranges::stable_sort(bounds,
                             [](const PointBound& a, const PointBound& b) { return a.extra > b.extra; });
    const size_t seeds = std::min<size_t>(bounds.size(), effort_ > 0 ? kMostSeeds : 1);
    const int64_t limit = std::exchange(limit_, limit_ / 2);  // the rest is for restarts
    if (above_ != nullptr && above_->choices) seed(*above_->choices);
    for (size_t i = 0; i < seeds && !done(); ++i) {
      from_cuts(bounds[i]);
      if (!found_ || (effort_ > 0 && best_measure_.cost > enough_ + kGapForBlockChain * out.base_cost))
        try_blocks();
    }
    limit_ = limit;
    if (above_ == nullptr && found_ && best_measure_.cost > enough_ + kGapForLongRestarts * out.base_cost)
      limit_ += limit;
    if (!found_) seed(nothing);
    restarts();
    return finish(std::move(out));
  }

 private:
  bool large() const { return graph_.operations.size() > kLargeGraph; }
  // Tells whether a large graph's plan is so near to the bound that more restarts cost more time than they save.
  bool is_near() const {
    return large() && found_ && best_measure_.cost <= enough_ + kGapForLongRestarts * graph_.base_cost();
  }
  bool good_enough() const { return found_ && best_measure_.cost <= enough_; }
  bool done() const { return good_enough() || (found_ && effort_ == 0); }
  // No plan of a smaller budget costs less; sums of costs differ in their last bits.
  double floor() const { return above_ == nullptr ? 0 : above_->cost; }
  bool below_floor(double cost) const { return cost < floor() * (1 - kCostRounding); }

  void take(const RecomputePlan& plan, const Measure& measure) {
    if (measure.peak > budget_ || (found_ && measure.cost >= best_measure_.cost)) return;
    if (below_floor(measure.cost)) return;
    found_ = true;
    best_ = plan;
    best_measure_ = measure;
  }

  Recompute finish(Recompute out) {
    out.feasible = found_;
    if (!found_) return out;
    const Measure judged = simulator_.run(best_, &out.schedule);
    out.peak = judged.peak;
    out.cost = std::max(judged.cost, floor());
    out.reruns = judged.reruns;
    if (out.lower_bound > out.cost * (1 - kCostRounding)) out.lower_bound = out.cost;
    out.choices = best_;
    return out;
  }

  // The choices of the cut `below` for tensors made before the operation `from`, of `above` from there on.
  RecomputePlan plan_of(int point, const Cut& below, const Cut& above, int from) const {
    RecomputePlan plan(graph_);
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const int x = static_cast<int>(i);
      const Tensor& tensor = graph_.tensors[i];
      if (tensor.producer < 0 || tensor.producer > point || graph_.once(x)) continue;
      const bool kept = (tensor.producer < from ? below : above).kept[tensor.storage] != 0;
      const int interval = plan.interval(graph_, x, point + 1);
      if (interval >= 0)
        plan.intervals[interval] = kept ? Interval::keep : Interval::drop;
      else if (kept && tensor.storage == x)
        plan.held[i] = 1;
    }
    return plan;
  }

  // The solutions along the trade-off at one point, and mixtures of neighbours; the best are polished.
  void from_cuts(const PointBound& hull) {
    const int point = hull.point;
    size_t over = 0;
    size_t under = hull.cuts.size();
    for (size_t i = 0; i < hull.cuts.size(); ++i) {
      const Measure measure = simulator_.run(plan_of(point, hull.cuts[i], hull.cuts[i], 0));
      if (measure.peak <= budget_) {
        under = i;
        break;
      }
      over = i;
    }
    if (under == hull.cuts.size()) {  // no cut alone fits: repair what comes nearest
      try_blocks();                   // with a plan at hand, repair looks at what it costs
      seed(plan_of(point, hull.cuts.back(), hull.cuts.back(), 0));
      if (hull.cuts.size() > 1) seed(plan_of(point, hull.cuts[over / 2], hull.cuts[over / 2], 0));
      return;
    }
    for (const bool early : {true, false}) {  // which part of the program takes over the tighter choices
      const Cut &tight = hull.cuts[under], &loose = hull.cuts[over];
      const auto mixture = [&](int from) {
        return early ? plan_of(point, tight, loose, from) : plan_of(point, loose, tight, point + 1 - from);
      };
      int fails = 0, fits = point + 1;
      while (fits - fails > 1) {
        const int middle = fails + (fits - fails) / 2;
        if (simulator_.run(mixture(middle)).peak <= budget_)
          fits = middle;
        else
          fails = middle;
      }
      seed(mixture(fits));
      // A little less than fits, for the repair to complete with single choices.
      if (effort_ > 0) seed(mixture(fails));
      if (effort_ > 0) seed(mixture(fails - fails / 8));
      if (done()) return;
    }
    if (effort_ > 0) seed(plan_of(point, hull.cuts[over], hull.cuts[over], 0));
  }

  void try_blocks() {
    if (!std::exchange(tried_blocks_, true)) best_of(block_plans(graph_, budget_));
  }

  // Polishes the cheapest of the plans that fit, and of those that nearly do.
  void best_of(const std::vector<RecomputePlan>& plans) {
    std::vector<std::pair<double, size_t>> fit, near;
    for (size_t i = 0; i < plans.size(); ++i) {
      const Measure measure = simulator_.run(plans[i]);
      if (measure.peak <= budget_) fit.emplace_back(measure.cost, i);
      // Above the budget the excess counts as if all memory cost as much as the step.
      const double over = static_cast<double>(std::max<int64_t>(0, measure.peak - budget_));
      near.emplace_back(measure.cost + over / static_cast<double>(budget_) * graph_.base_cost(), i);
    }
    for (auto* order : {&fit, &near}) {
      std::ranges::sort(*order);
      for (size_t i = 0; i < std::min<size_t>(order->size(), 3) && !done(); ++i)
        seed(plans[(*order)[i].second]);
    }
  }

  // Returns the cost of having x again at operation n, if what the plan keeps until then is there.
  double closure(const RecomputePlan& plan, int x, int n) {
    ++stamp_;
    double sum = 0;
    todo_.assign(1, x);
    for (size_t next = 0; next < todo_.size(); ++next) {
      const int o = graph_.tensor(todo_[next]).producer;
      if (seen_[o] == stamp_) continue;
      seen_[o] = stamp_;
      sum += graph_.operation(o).again_cost();
      for (const int y : graph_.operation(o).inputs) {
        const Tensor& tensor = graph_.tensor(y);
        if (tensor.producer < 0) continue;
        const auto use = std::ranges::lower_bound(tensor.uses, n);
        if (use == tensor.uses.end()) {
          if (plan.held[y] != 0) continue;
        } else if (*use == n || plan.intervals[plan.first(y) + static_cast<int>(use - tensor.uses.begin())] ==
                                    Interval::keep) {
          continue;
        }
        todo_.push_back(y);
      }
      work_ += 4;
    }
    return sum;
  }

  void drop(const Resident& r) {
    if (r.interval == Resident::kHeld)
      now_.set_held(r.tensor, 0);
    else
      now_.set_interval(r.interval, now_.plan().intervals[r.interval] == Interval::keep
                                        ? Interval::drop
                                        : Interval::drop_again);
  }

  // Drops at the fullest step until the plan fits, or nothing can go. Noise in [0, 1) blurs the choice.
  bool repair(const Manner& manner) {
    const int64_t target = budget_ - manner.slack;
    const auto blur = [&] { return 1 + manner.noise * (2 * chance() - 1); };
    std::vector<double> blurs(kinds_, 1);
    if (manner.by_kind) std::generate(blurs.begin(), blurs.end(), blur);
    const int64_t until = std::min(limit_, spent() + limit_ / kRepairsInAll);
    const double hopeless = best_measure_.cost + 0.5 * (best_measure_.cost - graph_.base_cost());
    while (now_.peak() > target) {
      if (spent() > until || (found_ && now_.cost() > hopeless)) return false;
      const std::vector<Resident> residents = now_.residents();
      struct Choice {
        double score;
        int far;  // the next need: of equals, the farthest goes
        int storage;
        int64_t bytes;
      };
      int64_t excess = now_.peak() - target;
      std::vector<std::pair<int, size_t>> by_storage;
      for (size_t i = 0; i < residents.size(); ++i)
        by_storage.emplace_back(graph_.tensor(residents[i].tensor).storage, i);
      std::ranges::sort(by_storage);
      std::vector<Choice> choices;
      for (size_t i = 0; i < by_storage.size();) {
        const int storage = by_storage[i].first;
        bool busy = false;
        double cost = 0;
        int far = 0;
        for (; i < by_storage.size() && by_storage[i].first == storage; ++i) {
          const Resident& r = residents[by_storage[i].second];
          busy = busy || r.interval == Resident::kNeeded || r.next < 0 || graph_.once(r.tensor);
          if (busy) continue;
          cost = std::max(cost, closure(now_.plan(), r.tensor, r.next));
          far = std::max(far, r.next);
        }
        if (busy) continue;
        const int64_t bytes = graph_.tensor(storage).bytes;
        double score = cost / static_cast<double>(std::min(bytes, excess));
        score *= manner.by_kind ? blurs[kind_[storage]] : blur();
        choices.push_back({score, far, storage, bytes});
      }
      if (choices.empty()) return false;
      // Several at a time where much is to go, but only the cheaper ones: choices change each other's costs.
      const size_t most = std::max<size_t>(1, choices.size() / kChoicesForOneDrop);
      const auto end = choices.begin() + static_cast<std::ptrdiff_t>(most);
      std::ranges::partial_sort(choices, end, [](const Choice& a, const Choice& b) {
        if (a.score != b.score) return a.score < b.score;
        return a.far != b.far ? a.far > b.far : a.storage < b.storage;
      });
      for (size_t k = 0; k < most && excess > 0; ++k) {
        for (const auto& [storage, i] : by_storage)
          if (storage == choices[k].storage) drop(residents[i]);
        excess -= choices[k].bytes;
      }
    }
    now_.commit();
    return true;
  }

  // Undoes drops that the budget does not need, one after the other. With `known` only drops that it has not:
  // those it has were tried before.
  void reverse(const RecomputePlan* known) {
    const int intervals = static_cast<int>(now_.plan().intervals.size());
    for (int round = 0; round < 3; ++round) {
      std::vector<int> dropped;  // intervals; beyond them the held tensors
      for (int g = 0; g < intervals; ++g) {
        const auto at = static_cast<size_t>(g);
        const Interval interval = now_.plan().intervals[at];
        if (interval != Interval::keep && (known == nullptr || known->intervals[at] != interval))
          dropped.push_back(g);
      }
      for (size_t x = 0; x < now_.plan().held.size(); ++x)
        if (now_.plan().held[x] != 0 && !graph_.once(static_cast<int>(x)) &&
            (known == nullptr || known->held[x] == 0))
          dropped.push_back(intervals + static_cast<int>(x));
      for (size_t i = dropped.size(); i > 1; --i) std::swap(dropped[i - 1], dropped[random_() % i]);
      bool better = false;
      for (const int choice : dropped) {
        if (spent() > limit_ || now_.cost() <= enough_) return;
        const double before = now_.cost();
        const auto fits = [&] {
          if (now_.peak() > budget_ || now_.cost() > before) {
            now_.undo();
            return false;
          }
          now_.commit();
          better = better || now_.cost() < before;
          return true;
        };
        if (choice >= intervals) {
          now_.set_held(choice - intervals, 0);
          fits();
          continue;
        }
        const bool twice = now_.plan().intervals[choice] > Interval::drop;
        now_.set_interval(choice, Interval::keep);
        if (fits() || !twice) continue;
        now_.set_interval(choice, Interval::drop);
        fits();
      }
      if (known == nullptr) better = hold() || better;
      if (!better) return;
    }
  }

  // Holds what replays make after its last use, where that saves making it again.
  bool hold() {
    bool better = false;
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const auto x = static_cast<int>(i);
      if (graph_.tensor(x).producer < 0 || graph_.once(x) || now_.plan().held[i] == 1) continue;
      const int times = std::min(now_.made_late(x), kMostMakingsBeforeHeld);
      for (int n = 1; n <= times && spent() <= limit_; ++n) {
        const double before = now_.cost();
        now_.set_held(x, n);
        if (now_.peak() <= budget_ && now_.cost() < before) {
          now_.commit();
          better = true;
          break;
        }
        now_.undo();
      }
    }
    return better;
  }

  // Repair, then reverse; false where the plan cannot be made to fit.
  bool polish(const RecomputePlan& plan, const Manner& manner = {}) {
    now_.change(plan);
    now_.commit();
    if (!repair(manner)) return false;
    take(now_.plan(), now_.measure());
    reverse(manner.known);
    if (manner.known != nullptr && now_.cost() < best_measure_.cost) reverse(nullptr);
    take(now_.plan(), now_.measure());
    return true;
  }

  // A plan to begin with: restarts go on from those that cost least.
  void seed(const RecomputePlan& plan) {
    if (!polish(plan)) return;
    const bool fresh = std::ranges::none_of(pool_, [&](const Known& k) { return k.cost == now_.cost(); });
    if (fresh) pool_.push_back({now_.cost(), now_.plan()});
  }

  int64_t spent() const { return simulator_.work() + now_.work() + work_; }

  double chance() { return static_cast<double>(random_()) * 0x1p-32; }

  // A part of the program: `shift`: how small a part.
  std::pair<int, int> part(int shift) {
    const int width = std::max(2, graph_.end() >> shift);
    const int from = static_cast<int>(chance() * (graph_.end() + width)) - width;
    return {from, from + width};
  }

  // Undoes the drops of tensors that are made or read again in a part of the program.
  void undo_part(RecomputePlan& plan, int shift) {
    const auto [from, to] = part(shift);
    const auto inside = [from = from, to = to](int n) { return n >= from && n < to; };
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[i];
      const auto first = static_cast<size_t>(plan.first(static_cast<int>(i)));
      for (size_t k = 0; k < tensor.uses.size(); ++k)
        if (inside(tensor.producer) || inside(tensor.uses[k])) plan.intervals[first + k] = Interval::keep;
    }
  }

  // Undoes a few drops.
  void undo_some(RecomputePlan& plan) {
    std::vector<size_t> dropped;
    for (size_t g = 0; g < plan.intervals.size(); ++g)
      if (plan.intervals[g] != Interval::keep) dropped.push_back(g);
    if (dropped.empty()) return;
    for (auto n = 1 + random_() % 4; n > 0; --n)
      plan.intervals[dropped[random_() % dropped.size()]] = Interval::keep;
  }

  // Takes over another plan's choices for what is made in a part of the program.
  void cross(RecomputePlan& plan, const RecomputePlan& other, int shift) {
    const auto [from, to] = part(shift);
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[i];
      if (tensor.producer < from || tensor.producer >= to) continue;
      const auto first = static_cast<size_t>(plan.first(static_cast<int>(i)));
      for (size_t k = 0; k < tensor.uses.size(); ++k) plan.intervals[first + k] = other.intervals[first + k];
      plan.held[i] = other.held[i];
    }
  }

  // Rounds that begin with the same plans and go different ways. Near the bound one that finds nothing is the last.
  void restarts() {
    if (effort_ == 0) return;
    if (pool_.empty()) {  // nothing fitted so far: from the plan that runs nothing again
      pool_.push_back({std::numeric_limits<double>::infinity(), RecomputePlan(graph_)});
      round(kRoundNoise[0]);
      if (!found_) return;
    }
    std::ranges::stable_sort(pool_, [](const Known& a, const Known& b) { return a.cost < b.cost; });
    if (pool_.size() > kRestartPlans) pool_.erase(pool_.begin() + kRestartPlans, pool_.end());
    const std::vector<Known> seeds = pool_;
    for (const double noise : kRoundNoise) {
      pool_ = seeds;
      const double before = best_measure_.cost;
      round(noise);
      if (is_near() && best_measure_.cost == before) return;
    }
  }

  void round(double noise) {
    int64_t since = spent();  // that the best plan was found
    int idle = 0;             // attempts since then
    const int most_idle = effort_ * (is_near() ? kIdleRestartsNear : kIdleRestarts);
    for (int attempt = 0; idle < most_idle && !good_enough(); ++attempt, ++idle) {
      if (spent() > limit_ || spent() - since > limit_ / kFruitlessRoundsInAll) break;
      const size_t n = pool_.size(), member = static_cast<size_t>(attempt) % n;
      const RecomputePlan base = pool_[member].plan;
      RecomputePlan plan = base;
      if (attempt % kRestartKinds < kUndoSome)
        undo_some(plan);
      else if (attempt % kRestartKinds < kUndoPart || n == 1)
        undo_part(plan, 3 + attempt % 3);
      else
        cross(plan, pool_[(member + 1 + random_() % (n - 1)) % n].plan, 1 + attempt % 4);
      const Manner manner{
          .noise = noise * (1 + attempt / kRestartKinds % kNoiseSteps),
          .by_kind = attempt / 4 % 2 == 1,
          .slack = attempt % 2 == 0 ? 0 : static_cast<int64_t>(random_() % kSlackSteps) * (budget_ / 100),
          .known = &base,
      };
      const double before = best_measure_.cost;
      if (!polish(plan, manner)) continue;
      const double cost = now_.cost();
      if (cost < pool_[member].cost &&
          std::ranges::none_of(pool_, [&](const Known& k) { return k.cost == cost; }))
        pool_[member] = {cost, now_.plan()};
      if (best_measure_.cost < before) {
        since = spent();
        idle = -1;
      }
    }
  }

  struct Known {
    double cost;
    RecomputePlan plan;
  };

  Bounds& bounds_;
  const Graph& graph_;
  int64_t budget_;
  int effort_;
  const Recompute* above_;
  Simulator simulator_;
  Incremental now_;  // the plan that is being changed
  std::mt19937 random_;
  RecomputePlan best_;
  std::vector<Known> pool_;
  Measure best_measure_;
  bool found_ = false, tried_blocks_ = false;
  double enough_ = 0;
  int64_t work_ = 0, limit_ = 0;
  std::vector<int> kind_;  // by tensor: those of one kind are as large and cost the same
  size_t kinds_ = 0;
  std::vector<int> todo_, seen_;
  int stamp_ = 0;
};

}  // namespace

double lower_bound(Bounds& bounds, int64_t budget) {
  double extra = 0;
  for (const int point : bounds.points()) extra = std::max(extra, bounds.at(point, budget).extra);
  return bounds.graph().base_cost() + extra;
}

Recompute plan_recompute(Bounds& bounds, int64_t budget, int effort, const Recompute* above) {
  return Planner(bounds, budget, effort, above).solve();
}

Recompute plan_recompute(const Graph& graph, int64_t budget, int effort, const Recompute* above) {
  Bounds bounds(graph);
  return plan_recompute(bounds, budget, effort, above);
}

}  // namespace gacc::passes::planner
