// One pass over the program; a plan that holds tensors takes a pass before it, to learn until when.
#include "passes/planner/simulate.h"

#include <algorithm>
#include <utility>

namespace gacc::passes::planner {

RecomputePlan::RecomputePlan(const Graph& graph) : held(graph.tensors.size(), 0) {
  int count = 0;
  for (const Tensor& x : graph.tensors) {
    first_.push_back(count);
    count += static_cast<int>(x.uses.size());
  }
  intervals.assign(static_cast<size_t>(count), Interval::keep);
  for (size_t x = 0; x < held.size(); ++x) held[x] = graph.once(static_cast<int>(x)) ? 1 : 0;
}

int RecomputePlan::interval(const Graph& graph, int x, int t) const {
  const std::vector<int>& uses = graph.tensor(x).uses;
  const auto end = std::ranges::lower_bound(uses, t);
  return end == uses.end() ? -1 : first_[x] + static_cast<int>(end - uses.begin());
}

Simulator::Simulator(const Graph& graph)
    : graph_(graph),
      now_(graph.tensors.size()),
      in_replay_(graph.operations.size()),
      held_until_(graph.tensors.size(), -1) {}

void Simulator::allocate(int x) {
  if (state(x).live) return;
  state(x).live = true;
  const int s = graph_.tensor(x).storage;
  if (state(s).members++ == 0) bytes_ += graph_.tensor(s).bytes;
}

void Simulator::release(int x) {
  if (!state(x).live || graph_.tensor(x).producer < 0) return;
  state(x).live = false;
  const int s = graph_.tensor(x).storage;
  if (--state(s).members == 0) bytes_ -= graph_.tensor(s).bytes;
  if (schedule_ != nullptr) schedule_->back().drops.push_back(x);
}

void Simulator::execute(int operation, int at) {
  for (const int x : graph_.operation(operation).outputs) {
    if (!state(x).live) state(x).fresh_at = step_;
    allocate(x);
  }
  full_ = bytes_;
  measure_.cost +=
      operation != at ? graph_.operation(operation).again_cost() : graph_.operation(operation).cost;
  if (operation != at) ++measure_.reruns;
  work_ += 4 + static_cast<int64_t>(graph_.operation(operation).inputs.size());
  if (schedule_ != nullptr && operation != graph_.end()) schedule_->push_back({operation, {}});
  ++step_;
}

// After an operation's inputs were released: what died there may have given its bytes to an output.
void Simulator::settle(int operation) {
  const int64_t step = step_ - 1;
  for (const auto& [input, output] : graph_.operation(operation).in_place) {
    State &from = state(input), &to = state(output);
    if (from.live || to.fresh_at != step || to.taken_at == step || from.taken_at == step) continue;
    from.taken_at = to.taken_at = step;
    full_ -= graph_.tensor(output).bytes;
  }
  measure_.peak = std::max(measure_.peak, full_);
}

// Returns whether a tensor that the replay made, or read beyond its last use, stays when the replay is done with it.
bool Simulator::stays(const RecomputePlan& plan, int x) const {
  const State& now = state(x);
  if (now.passed < static_cast<int>(graph_.tensor(x).uses.size()))
    return now.made >= static_cast<int>(plan.intervals[plan.first(x) + now.passed]);
  return false;
}

bool Simulator::held(const RecomputePlan& plan, int x) const {
  const uint16_t times = plan.held[x];
  return times != 0 && state(x).made + 1 >= times;
}

void Simulator::replay(const RecomputePlan& plan, int operation, bool measure_holds) {
  // 1. What is missing, with what is missing for that.
  list_.clear();
  const auto want = [&](int x) {
    if (!state(x).live) {
      const int producer = graph_.tensor(x).producer;
      if (in_replay_[producer] != operation) {
        in_replay_[producer] = operation;
        list_.push_back(producer);
      }
    } else if (measure_holds) {
      held_until_[x] = operation;
    }
  };
  for (const int x : graph_.operation(operation).inputs) {
    state(x).needed_at = operation;
    state(x).pending = 1;  // never freed by the replay
    want(x);
  }
  for (size_t next = 0; next < list_.size(); ++next) {
    for (const int x : graph_.operation(list_[next]).inputs) {
      State& now = state(x);
      if (now.needed_at != operation) now.needed_at = operation, now.pending = 0;
      ++now.pending;
      want(x);
    }
  }
  if (list_.empty()) return;
  std::ranges::sort(list_);
  // 2. Make it. What was live before stays, but for held tensors whose last reader this was.
  for (const int o : list_) {
    fresh_.clear();
    for (const int x : graph_.operation(o).outputs) {
      State& now = state(x);
      if (now.needed_at != operation) now.needed_at = -1, now.pending = 0;
      if (!now.live) fresh_.push_back(x);  // what lives already is not made again
    }
    execute(o, operation);
    for (const int x : fresh_) {
      ++state(x).made;
      if (state(x).pending == 0 && !stays(plan, x)) release(x);
    }
    for (const int x : graph_.operation(o).inputs) {
      State& now = state(x);
      if (--now.pending > 0) continue;
      now.needed_at = -1;
      if (stays(plan, x)) continue;
      const bool over = now.passed == static_cast<int>(graph_.tensor(x).uses.size());
      if (over && held(plan, x) && (measure_holds || held_until_[x] > operation)) continue;
      release(x);
    }
    settle(o);
  }
}

Measure Simulator::pass(const RecomputePlan& plan, bool measure_holds, std::vector<Step>* schedule) {
  std::ranges::fill(now_, State{});
  std::ranges::fill(in_replay_, -1);
  if (measure_holds) std::ranges::fill(held_until_, -1);
  bytes_ = step_ = 0;
  measure_ = {};
  schedule_ = schedule;
  for (size_t x = 0; x < graph_.tensors.size(); ++x)
    now_[x].live = graph_.tensors[x].producer < 0;  // costs no bytes: its storage has none
  const auto after = [&](int x, int t) {
    const int uses = static_cast<int>(graph_.tensor(x).uses.size());
    if (state(x).passed < uses) {
      if (plan.intervals[plan.first(x) + state(x).passed] != Interval::keep) release(x);
    } else if (!held(plan, x) || (!measure_holds && held_until_[x] <= t)) {
      release(x);
    }
  };
  for (int t = 0; t <= graph_.end(); ++t) {
    if (t == split_) measure_.peak_before = std::exchange(measure_.peak, 0);
    replay(plan, t, measure_holds);
    execute(t, t);
    if (t == graph_.end()) {
      settle(t);
      break;
    }
    for (const int x : graph_.operation(t).inputs) ++state(x).passed, state(x).made = 0, after(x, t);
    for (const int x : graph_.operation(t).outputs) after(x, t);
    settle(t);
  }
  schedule_ = nullptr;
  return measure_;
}

Measure Simulator::run(const RecomputePlan& plan, std::vector<Step>* schedule) {
  if (std::ranges::any_of(plan.held, [](uint16_t times) { return times != 0; })) pass(plan, true, nullptr);
  return pass(plan, false, schedule);
}

}  // namespace gacc::passes::planner
