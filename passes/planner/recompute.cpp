// 1. Bounds by minimum cuts at several points of the program; their solutions are seeds.
// 2. A seed that fits beside one that does not: the choices of the first are taken over for a growing part of
//    the program, until that fits.
// 3. Repair: at the fullest step, what lives there only because the plan wants it goes, least cost per useful
//    byte first. Then in reverse: drops that the budget does not need are undone, in groups.
// 4. Restarts from the best plan with the drops of a part of the program undone, or some at random, and noise
//    in the choice of the others.
// Tiny graphs are solved exactly instead.
#include "passes/planner/recompute.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "passes/planner/blocks.h"
#include "passes/planner/bound.h"
#include "passes/planner/exact.h"
#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

namespace {

constexpr double kDeep = 0.002;      // of the base cost: a gap above which blocks are planned as a chain
constexpr double kFar = 0.005;       // and one above which restarts may take three times as long
constexpr double kRounding = 1e-12;  // costs no further apart than this are one

class Planner {
 public:
  Planner(const Graph& graph, int64_t budget, int effort)
      : graph_(graph), budget_(budget), effort_(effort), simulator_(graph), random_(1), best_(graph) {
    // About 0.3 seconds and 0.4 milliseconds per operation, at 150 million visits a second.
    limit_ =
        static_cast<int64_t>(2e7 + 5e4 * static_cast<double>(graph.operations.size())) * std::max(effort, 1);
  }

  Recompute solve() {
    Recompute out;
    out.base_cost = graph_.base_cost();
    const Plan nothing(graph_);
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
    if (const double least = chain_bound(graph_, budget_); least > 0) {
      out.proven = !std::isfinite(least);
      if (out.proven) return out;
      out.lower_bound = std::max(out.lower_bound, least);
      enough_ = out.lower_bound * (1 + kRounding);
      try_blocks();
      if (good_enough()) return finish(std::move(out));
    }
    Exact exact;
    if (graph_.plain()) exact = solve_exactly(graph_, budget_, 200000 * (1 + int64_t{effort_}));
    if (exact.outcome != Exact::Outcome::gave_up) {
      out.proven = exact.outcome == Exact::Outcome::infeasible;
      if (!out.proven) accept_exact(out, std::move(exact));
      return out;
    }
    std::vector<PointBound> bounds;
    int64_t work = 0;
    for (const int point : bound_points(graph_)) {
      bounds.push_back(bound_at(graph_, point, budget_, 0, work));
      out.lower_bound = std::max(out.lower_bound, out.base_cost + bounds.back().extra);
    }
    enough_ = out.lower_bound + 1e-4 * out.base_cost;
    std::stable_sort(bounds.begin(), bounds.end(),
                     [](const PointBound& a, const PointBound& b) { return a.extra > b.extra; });
    const size_t seeds = std::min<size_t>(bounds.size(), effort_ > 0 ? 3 : 1);
    const int64_t limit = std::exchange(limit_, limit_ / 2);  // the rest is for restarts
    for (size_t i = 0; i < seeds && !good_enough(); ++i) {
      const PointBound hull = bound_at(graph_, bounds[i].point, budget_, 24, work);
      from_cuts(hull);
    }
    if (!found_ || (effort_ > 0 && best_measure_.cost > enough_ + kDeep * out.base_cost)) try_blocks();
    limit_ = limit;
    if (found_ && best_measure_.cost > enough_ + kFar * out.base_cost) limit_ += limit;
    if (!found_) polish(nothing, 0);
    restarts();
    return finish(std::move(out));
  }

 private:
  bool good_enough() const { return found_ && best_measure_.cost <= enough_; }

  void take(const Plan& plan, const Measure& measure) {
    if (measure.peak > budget_ || (found_ && measure.cost >= best_measure_.cost)) return;
    found_ = true;
    best_ = plan;
    best_measure_ = measure;
  }

  Recompute finish(Recompute out) {
    out.feasible = found_;
    if (!found_) return out;
    simulator_.run(best_, &out.schedule);
    out.peak = best_measure_.peak;
    out.cost = best_measure_.cost;
    out.reruns = best_measure_.reruns;
    if (out.lower_bound > out.cost * (1 - kRounding)) out.lower_bound = out.cost;
    return out;
  }

  void accept_exact(Recompute& out, Exact exact) {
    out.feasible = true;
    out.cost = out.lower_bound = exact.cost;
    out.reruns = static_cast<int64_t>(exact.schedule.size()) - graph_.end();
    std::vector<int> members(graph_.tensors.size(), 0);
    std::vector<char> live(graph_.tensors.size(), 0);
    int64_t bytes = 0;
    for (const Step& step : exact.schedule) {
      for (const int x : graph_.operation(step.operation).outputs) {
        if (live[static_cast<size_t>(x)]++ != 0) continue;
        const int s = graph_.tensor(x).storage;
        if (members[static_cast<size_t>(s)]++ == 0) bytes += graph_.tensor(s).bytes;
      }
      out.peak = std::max(out.peak, bytes);
      for (const int x : step.drops) {
        live[static_cast<size_t>(x)] = 0;
        const int s = graph_.tensor(x).storage;
        if (--members[static_cast<size_t>(s)] == 0) bytes -= graph_.tensor(s).bytes;
      }
    }
    out.schedule = std::move(exact.schedule);
  }

  // The gap of x that spans the point `t` (made or read at t or before, read after it), or -1.
  int spanning(int x, int t) const {
    const Tensor& tensor = graph_.tensor(x);
    if (tensor.producer < 0 || tensor.producer > t) return -1;
    const auto next = std::upper_bound(tensor.uses.begin(), tensor.uses.end(), t);
    if (next == tensor.uses.end()) return -1;
    return plan_first_.first(x) + static_cast<int>(next - tensor.uses.begin());
  }

  // The choices of a cut for tensors made before `from_below`, of another from there on.
  Plan plan_of(int point, const Cut& below, const Cut& above, int from) const {
    Plan plan(graph_);
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const int x = static_cast<int>(i);
      const Tensor& tensor = graph_.tensors[i];
      if (tensor.producer < 0 || tensor.producer > point || graph_.once(x)) continue;
      const bool kept =
          (tensor.producer < from ? below : above).kept[static_cast<size_t>(tensor.storage)] != 0;
      const int gap = spanning(x, point);
      if (gap >= 0)
        plan.gaps[static_cast<size_t>(gap)] = kept ? Gap::keep : Gap::drop;
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
      try_blocks();                   // with a plan at hand, repair looks at the work
      polish(plan_of(point, hull.cuts.back(), hull.cuts.back(), 0), 0);
      if (hull.cuts.size() > 1) polish(plan_of(point, hull.cuts[over / 2], hull.cuts[over / 2], 0), 0);
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
        (simulator_.run(mixture(middle)).peak <= budget_ ? fits : fails) = middle;
      }
      polish(mixture(fits), 0);
      // A little less than fits, for the repair to complete with single choices.
      if (effort_ > 0) polish(mixture(fails), 0);
      if (effort_ > 0) polish(mixture(fails - fails / 8), 0);
      if (good_enough()) return;
    }
    if (effort_ > 0) polish(plan_of(point, hull.cuts[over], hull.cuts[over], 0), 0);
  }

  void try_blocks() {
    if (!std::exchange(tried_blocks_, true)) best_of(block_plans(graph_, budget_));
  }

  // Takes the cheapest of the plans that fit. Polishes what is best of all, more bytes than there are paid
  // for.
  void best_of(std::vector<Plan> plans) {
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < plans.size(); ++i) {
      const Measure measure = simulator_.run(plans[i]);
      take(plans[i], measure);
      // Above the budget the excess counts as if all memory cost as much as the step.
      const double over = static_cast<double>(std::max<int64_t>(0, measure.peak - budget_));
      order.emplace_back(measure.cost + over / static_cast<double>(budget_) * graph_.base_cost(), i);
    }
    std::sort(order.begin(), order.end());
    const size_t most = effort_ > 0 ? 5 : found_ ? 0 : 1;
    for (size_t i = 0; i < std::min(order.size(), most) && !good_enough(); ++i)
      polish(std::move(plans[order[i].second]), 0);
  }

  // What it costs to have x again at operation n, if what the plan keeps until then is there.
  double closure(const Plan& plan, int x, int n) {
    ++stamp_;
    double sum = 0;
    todo_.assign(1, x);
    for (size_t next = 0; next < todo_.size(); ++next) {
      const int o = graph_.tensor(todo_[next]).producer;
      if (seen_[static_cast<size_t>(o)] == stamp_) continue;
      seen_[static_cast<size_t>(o)] = stamp_;
      sum += graph_.operation(o).again_cost();
      for (const int y : graph_.operation(o).inputs) {
        const Tensor& tensor = graph_.tensor(y);
        if (tensor.producer < 0) continue;
        const auto use = std::lower_bound(tensor.uses.begin(), tensor.uses.end(), n);
        if (use == tensor.uses.end()) {
          if (plan.held[static_cast<size_t>(y)] != 0) continue;
        } else if (*use == n ||
                   plan.gaps[static_cast<size_t>(plan.first(y) +
                                                 static_cast<int>(use - tensor.uses.begin()))] == Gap::keep) {
          continue;
        }
        todo_.push_back(y);
      }
      work_ += 4;
    }
    return sum;
  }

  void drop(Plan& plan, const Resident& r) const {
    if (r.gap < 0) {
      plan.held[static_cast<size_t>(r.tensor)] = 0;
    } else {
      Gap& gap = plan.gaps[static_cast<size_t>(r.gap)];
      gap = gap == Gap::keep ? Gap::drop : Gap::drop_again;
    }
  }

  // Drops at the fullest step until the plan fits, or nothing can go. `noise` in [0, 1) blurs the choice.
  bool repair(Plan& plan, Measure& measure, double noise) {
    seen_.resize(graph_.operations.size(), 0);
    measure = simulator_.run(plan);
    for (int turn = 0; measure.peak > budget_; ++turn) {
      if (turn > 4000 || (found_ && spent() > limit_)) return false;
      const std::vector<Resident> residents = simulator_.residents(plan, measure.peak_step);
      struct Choice {
        double score;
        int far;  // the next need: of equals, the farthest goes
        int storage;
        int64_t bytes;
      };
      int64_t excess = measure.peak - budget_;
      std::vector<std::pair<int, size_t>> by_storage;
      for (size_t i = 0; i < residents.size(); ++i)
        by_storage.emplace_back(graph_.tensor(residents[i].tensor).storage, i);
      std::sort(by_storage.begin(), by_storage.end());
      std::vector<Choice> choices;
      for (size_t i = 0; i < by_storage.size();) {
        const int storage = by_storage[i].first;
        bool busy = false;
        double cost = 0;
        int far = 0;
        for (; i < by_storage.size() && by_storage[i].first == storage; ++i) {
          const Resident& r = residents[by_storage[i].second];
          busy = busy || r.gap == -2 || r.next < 0 || graph_.once(r.tensor);
          if (busy) continue;
          cost = std::max(cost, closure(plan, r.tensor, r.next));
          far = std::max(far, r.next);
        }
        if (busy) continue;
        const int64_t bytes = graph_.tensor(storage).bytes;
        double score = cost / static_cast<double>(std::min(bytes, excess));
        if (noise > 0) score *= 1 + noise * (static_cast<double>(random_()) * 0x1p-31 - 1);
        choices.push_back({score, far, storage, bytes});
      }
      if (choices.empty()) return false;
      std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
        if (a.score != b.score) return a.score < b.score;
        return a.far != b.far ? a.far > b.far : a.storage < b.storage;
      });
      // Several at a time where much is to go, but only the cheaper ones: choices change each other's costs.
      const size_t most = std::max<size_t>(1, choices.size() / 64);
      for (size_t k = 0; k < std::min(most, choices.size()) && excess > 0; ++k) {
        for (const auto& [storage, i] : by_storage) {
          if (storage == choices[k].storage) drop(plan, residents[i]);
        }
        excess -= choices[k].bytes;
      }
      measure = simulator_.run(plan);
    }
    return true;
  }

  // Undoes drops that the budget does not need: whole groups where they fit, halves where not.
  // With `known` only drops that it has not: those it has were tried before.
  void reverse(Plan& plan, Measure& measure, const Plan* known) {
    const int gaps = static_cast<int>(plan.gaps.size());
    for (int round = known == nullptr ? 0 : 1; round < 3; ++round) {
      std::vector<int> dropped;  // gaps; beyond them the held tensors
      for (int g = 0; g < gaps; ++g) {
        const auto at = static_cast<size_t>(g);
        if (plan.gaps[at] != Gap::keep && (known == nullptr || known->gaps[at] != plan.gaps[at]))
          dropped.push_back(g);
      }
      for (size_t x = 0; x < plan.held.size(); ++x) {
        if (plan.held[x] != 0 && !graph_.once(static_cast<int>(x)) &&
            (known == nullptr || known->held[x] == 0))
          dropped.push_back(gaps + static_cast<int>(x));
      }
      for (size_t i = dropped.size(); i > 1; --i) std::swap(dropped[i - 1], dropped[random_() % i]);
      bool better = false;
      std::vector<std::pair<size_t, size_t>> ranges;
      const size_t group = round == 0 ? 8 : 1;
      for (size_t i = 0; i < dropped.size(); i += group)
        ranges.emplace_back(i, std::min(dropped.size(), i + group));
      for (size_t next = 0; next < ranges.size(); ++next) {
        if (spent() > limit_ || measure.cost <= enough_) return;
        const auto [begin, end] = ranges[next];
        Plan other = plan;
        for (size_t i = begin; i < end; ++i) {
          if (dropped[i] < gaps)
            other.gaps[static_cast<size_t>(dropped[i])] = Gap::keep;
          else
            other.held[static_cast<size_t>(dropped[i] - gaps)] = 0;
        }
        const Measure now = simulator_.run(other);
        if (now.peak <= budget_ && now.cost <= measure.cost) {
          better = better || now.cost < measure.cost;
          plan = std::move(other);
          measure = now;
        } else if (end - begin > 1 && now.cost <= measure.cost) {
          const size_t middle = begin + (end - begin) / 2;
          ranges.emplace_back(begin, middle);
          ranges.emplace_back(middle, end);
        }
      }
      if (!better && round > 0) return;
    }
  }

  void polish(Plan plan, double noise, const Plan* known = nullptr) {
    Measure measure;
    if (!repair(plan, measure, noise)) return;
    take(plan, measure);
    reverse(plan, measure, known);
    take(plan, measure);
  }

  int64_t spent() const { return simulator_.work() + work_; }

  double chance() { return static_cast<double>(random_()) * 0x1p-32; }

  // Undoes the drops of tensors that are made or read again in a part of the program.
  void undo(Plan& plan, int from, int to) const {
    const auto inside = [&](int n) { return n >= from && n < to; };
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[i];
      const auto first = static_cast<size_t>(plan.first(static_cast<int>(i)));
      for (size_t k = 0; k < tensor.uses.size(); ++k) {
        if (inside(tensor.producer) || inside(tensor.uses[k])) plan.gaps[first + k] = Gap::keep;
      }
    }
  }

  void restarts() {
    const int length = graph_.end();
    for (int turn = 0; turn < 256 * effort_ && spent() < limit_ && !good_enough(); ++turn) {
      const Plan base = found_ ? best_ : Plan(graph_);
      Plan plan = base;
      const double noise = 0.1 + 0.1 * static_cast<double>(turn % 5);
      if (turn % 8 == 7) {
        for (Gap& gap : plan.gaps) {
          if (gap != Gap::keep && chance() < 0.2) gap = Gap::keep;
        }
        polish(std::move(plan), noise);
      } else {
        const int width = std::max(2, length / (8 << turn % 3));
        const int from = static_cast<int>(chance() * (length + width)) - width;
        undo(plan, from, from + width);
        polish(std::move(plan), noise, &base);
      }
    }
  }

  const Graph& graph_;
  int64_t budget_;
  int effort_;
  Simulator simulator_;
  std::mt19937 random_;
  Plan best_;
  Plan plan_first_{graph_};  // for the numbers of gaps
  Measure best_measure_;
  bool found_ = false, tried_blocks_ = false;
  double enough_ = 0;
  int64_t work_ = 0, limit_ = 0;
  std::vector<int> todo_, seen_;
  int stamp_ = 0;
};

}  // namespace

double lower_bound(const Graph& graph, int64_t budget) {
  int64_t work = 0;
  double extra = 0;
  for (const int point : bound_points(graph))
    extra = std::max(extra, bound_at(graph, point, budget, 0, work).extra);
  return std::max(graph.base_cost() + extra, chain_bound(graph, budget));
}

Recompute plan_recompute(const Graph& graph, int64_t budget, int effort) {
  return Planner(graph, budget, effort).solve();
}

}  // namespace gacc::passes::planner
