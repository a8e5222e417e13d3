// One pass over the program; a plan that holds tensors takes a pass before it, to learn until when.
#include "passes/planner/simulate.h"

#include <algorithm>
#include <utility>

namespace gacc::passes::planner {

Plan::Plan(const Graph& graph) : held(graph.tensors.size(), 0) {
  int count = 0;
  for (const Tensor& x : graph.tensors) {
    first_.push_back(count);
    count += static_cast<int>(x.uses.size());
  }
  gaps.assign(static_cast<size_t>(count), Gap::keep);
  for (size_t x = 0; x < held.size(); ++x) held[x] = graph.once(static_cast<int>(x)) ? 1 : 0;
}

Simulator::Simulator(const Graph& graph)
    : graph_(graph),
      live_(graph.tensors.size()),
      members_(graph.tensors.size()),
      passed_(graph.tensors.size()),
      made_(graph.tensors.size()),
      pending_(graph.tensors.size()),
      needed_at_(graph.tensors.size()),
      in_burst_(graph.operations.size()),
      held_until_(graph.tensors.size(), -1),
      fresh_at_(graph.tensors.size(), -1),
      taken_at_(graph.tensors.size(), -1) {}

void Simulator::allocate(int x) {
  if (live_[static_cast<size_t>(x)] != 0) return;
  live_[static_cast<size_t>(x)] = 1;
  const int s = graph_.tensor(x).storage;
  if (members_[static_cast<size_t>(s)]++ == 0) bytes_ += graph_.tensor(s).bytes;
}

void Simulator::release(int x) {
  if (live_[static_cast<size_t>(x)] == 0 || graph_.tensor(x).producer < 0) return;
  live_[static_cast<size_t>(x)] = 0;
  const int s = graph_.tensor(x).storage;
  if (--members_[static_cast<size_t>(s)] == 0) bytes_ -= graph_.tensor(s).bytes;
  if (schedule_ != nullptr) schedule_->back().drops.push_back(x);
}

void Simulator::execute(int operation, int at) {
  for (const int x : graph_.operation(operation).outputs) {
    if (live_[static_cast<size_t>(x)] == 0) fresh_at_[static_cast<size_t>(x)] = step_;
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
    const auto from = static_cast<size_t>(input), to = static_cast<size_t>(output);
    if (live_[from] != 0 || fresh_at_[to] != step || taken_at_[to] == step || taken_at_[from] == step)
      continue;
    taken_at_[from] = taken_at_[to] = step;
    full_ -= graph_.tensor(output).bytes;
  }
  measure_.peak = std::max(measure_.peak, full_);
}

// Whether a tensor that the burst made, or read beyond its last use, stays when the burst is done with it.
bool Simulator::stays(const Plan& plan, int x) const {
  const size_t at = static_cast<size_t>(x);
  const int passed = passed_[at];
  if (passed < static_cast<int>(graph_.tensor(x).uses.size()))
    return made_[at] >= static_cast<int>(plan.gaps[static_cast<size_t>(plan.first(x) + passed)]);
  return false;
}

bool Simulator::held(const Plan& plan, int x) const {
  const auto at = static_cast<size_t>(x);
  return plan.held[at] != 0 && made_[at] + 1 >= plan.held[at];
}

void Simulator::burst(const Plan& plan, int operation, bool measure_holds) {
  // 1. What is missing, with what is missing for that.
  list_.clear();
  const auto want = [&](int x) {
    const size_t at = static_cast<size_t>(x);
    if (live_[at] == 0) {
      const int producer = graph_.tensor(x).producer;
      if (in_burst_[static_cast<size_t>(producer)] != operation) {
        in_burst_[static_cast<size_t>(producer)] = operation;
        list_.push_back(producer);
      }
    } else if (measure_holds) {
      held_until_[at] = operation;
    }
  };
  for (const int x : graph_.operation(operation).inputs) {
    needed_at_[static_cast<size_t>(x)] = operation;
    pending_[static_cast<size_t>(x)] = 1;  // never freed by the burst
    want(x);
  }
  for (size_t next = 0; next < list_.size(); ++next) {
    for (const int x : graph_.operation(list_[next]).inputs) {
      const size_t at = static_cast<size_t>(x);
      if (needed_at_[at] != operation) needed_at_[at] = operation, pending_[at] = 0;
      ++pending_[at];
      want(x);
    }
  }
  if (list_.empty()) return;
  std::sort(list_.begin(), list_.end());
  // 2. Make it. What was live before stays, but for held tensors whose last reader this was.
  const size_t count = list_.size();
  for (size_t next = 0; next < count; ++next) {
    const int o = list_[next];
    fresh_.clear();
    for (const int x : graph_.operation(o).outputs) {
      const size_t at = static_cast<size_t>(x);
      if (needed_at_[at] != operation) needed_at_[at] = -1, pending_[at] = 0;
      if (live_[at] == 0) fresh_.push_back(x);  // what lives already is not made again
    }
    execute(o, operation);
    for (const int x : fresh_) {
      ++made_[static_cast<size_t>(x)];
      if (pending_[static_cast<size_t>(x)] == 0 && !stays(plan, x)) release(x);
    }
    for (const int x : graph_.operation(o).inputs) {
      const size_t at = static_cast<size_t>(x);
      if (--pending_[at] > 0) continue;
      needed_at_[at] = -1;
      if (stays(plan, x)) continue;
      const bool over = passed_[at] == static_cast<int>(graph_.tensor(x).uses.size());
      if (over && held(plan, x) && (measure_holds || held_until_[at] > operation)) continue;
      release(x);
    }
    settle(o);
  }
}

Measure Simulator::pass(const Plan& plan, bool measure_holds, std::vector<Step>* schedule) {
  std::fill(live_.begin(), live_.end(), 0);
  std::fill(members_.begin(), members_.end(), 0);
  std::fill(passed_.begin(), passed_.end(), 0);
  std::fill(made_.begin(), made_.end(), 0);
  std::fill(pending_.begin(), pending_.end(), 0);
  std::fill(needed_at_.begin(), needed_at_.end(), -1);
  std::fill(in_burst_.begin(), in_burst_.end(), -1);
  std::fill(fresh_at_.begin(), fresh_at_.end(), -1);
  std::fill(taken_at_.begin(), taken_at_.end(), -1);
  if (measure_holds) std::fill(held_until_.begin(), held_until_.end(), -1);
  bytes_ = step_ = 0;
  measure_ = {};
  schedule_ = schedule;
  for (size_t x = 0; x < graph_.tensors.size(); ++x) {
    if (graph_.tensors[x].producer < 0) live_[x] = 1;  // costs no bytes: its storage has none
  }
  const auto after = [&](int x, int t) {
    const size_t at = static_cast<size_t>(x);
    const int uses = static_cast<int>(graph_.tensor(x).uses.size());
    if (passed_[at] < uses) {
      if (plan.gaps[static_cast<size_t>(plan.first(x) + passed_[at])] != Gap::keep) release(x);
    } else if (!held(plan, x) || (!measure_holds && held_until_[at] <= t)) {
      release(x);
    }
  };
  for (int t = 0; t <= graph_.end(); ++t) {
    if (t == split_) measure_.peak_before = std::exchange(measure_.peak, 0);
    burst(plan, t, measure_holds);
    execute(t, t);
    if (t == graph_.end()) {
      settle(t);
      break;
    }
    for (const int x : graph_.operation(t).inputs)
      ++passed_[static_cast<size_t>(x)], made_[static_cast<size_t>(x)] = 0, after(x, t);
    for (const int x : graph_.operation(t).outputs) after(x, t);
    settle(t);
  }
  schedule_ = nullptr;
  return measure_;
}

Measure Simulator::run(const Plan& plan, std::vector<Step>* schedule) {
  if (std::any_of(plan.held.begin(), plan.held.end(), [](uint16_t times) { return times != 0; }))
    pass(plan, true, nullptr);
  return pass(plan, false, schedule);
}

}  // namespace gacc::passes::planner
