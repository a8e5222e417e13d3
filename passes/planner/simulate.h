// The judge: runs a plan on exact liveness. What it says of peak and cost is what the schedule it prints
// does.
//
// A plan decides about *live intervals*: the time between two uses of a tensor (its making counts as one). A
// tensor that is dropped in an interval is made again when the next operation needs it, with whatever else is
// missing for that: this is the *replay*, in program order, right before that operation.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "passes/planner/graph.h"

namespace gacc::passes::planner {

enum class Interval : uint16_t {
  keep,
  drop,                // but what a replay makes again on its way stays for its next use
  drop_again = 65535,  // even that goes
};
// The first `times` times it goes, what a replay makes then stays: keep is 0 times, drop 1.
constexpr Interval dropped(int times) { return static_cast<Interval>(std::min(times, 65534)); }

// Intervals by tensor, in order of time. After its last use a tensor may be held for the replays that read it.
class RecomputePlan {
 public:
  explicit RecomputePlan(const Graph& graph);
  int first(int x) const { return first_[x]; }
  // Returns the first interval of x that ends at operation `t` or later; -1: there is none.
  int interval(const Graph& graph, int x, int t) const;
  std::vector<Interval> intervals;
  std::vector<uint16_t> held;  // by tensor; n + 1: from the n-th time on that a replay makes it

 private:
  std::vector<int> first_;
};

struct Measure {
  int64_t peak = 0;
  double cost = 0;          // of all executions
  int64_t reruns = 0;       // executions beyond the first
  int64_t peak_before = 0;  // of the operations before `split`; `peak` is of the others then
};

class Simulator {
 public:
  explicit Simulator(const Graph& graph);
  Measure run(const RecomputePlan& plan, std::vector<Step>* schedule = nullptr);
  // Two peaks from now on: of what runs before the first execution of `operation` and its replay, and of the
  // rest.
  void split(int operation) { split_ = operation; }
  // Visits of operations and tensors so far: the measure of work.
  int64_t work() const { return work_; }

 private:
  // State of a tensor.
  struct State {
    bool live = false;
    int members = 0;                       // live tensors that share its bytes, if it owns them
    int passed = 0;                        // uses in program order so far
    int made = 0;                          // how often replays made it since its last use
    int pending = 0;                       // readers still to come in the replay
    int needed_at = -1;                    // the operation that reads it or whose replay does
    int64_t fresh_at = -1, taken_at = -1;  // the step that made it, that shared its bytes
  };
  State& state(int x) { return now_[x]; }
  const State& state(int x) const { return now_[x]; }
  Measure pass(const RecomputePlan& plan, bool measure_holds, std::vector<Step>* schedule);
  void replay(const RecomputePlan& plan, int operation, bool measure_holds);
  void execute(int operation, int at);
  void settle(int operation);
  void allocate(int x);
  void release(int x);
  bool stays(const RecomputePlan& plan, int x) const;
  bool held(const RecomputePlan& plan, int x) const;

  const Graph& graph_;
  int split_ = -1;
  std::vector<State> now_;       // by tensor
  std::vector<int> in_replay_;   // by operation: the last replay that held it
  std::vector<int> held_until_;  // by tensor that is held: the last operation whose replay reads it, or -1
  std::vector<int> list_, fresh_;
  int64_t bytes_ = 0, full_ = 0, step_ = 0, work_ = 0;
  Measure measure_;
  std::vector<Step>* schedule_ = nullptr;
};

}  // namespace gacc::passes::planner
