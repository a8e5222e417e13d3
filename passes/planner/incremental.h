// The simulator for a plan that changes a little at a time: what it says is what Simulator says of the same
// plan, and a change costs what it changes, not a pass over the program.
//
//   Incremental now(graph);
//   now.change(plan);
//   now.commit();
//   now.set_interval(g, Interval::keep);
//   if (now.peak() > budget) now.undo(); else now.commit();
#pragma once
#include <utility>
#include <vector>

#include "passes/planner/simulate.h"

namespace gacc::passes::planner {

// A tensor that lives at a step.
struct Resident {
  static constexpr int kHeld = -1, kNeeded = -2;
  int tensor = 0;
  // In RecomputePlan::intervals: the one that keeps it. kHeld: after its last use; kNeeded: the step needs it.
  int interval = kHeld;
  int next = 0;  // the operation at which it is needed again
};

class Incremental {
 public:
  explicit Incremental(const Graph& graph);

  void change(const RecomputePlan& plan);  // where it differs; at first nothing is dropped
  void set_interval(int interval, Interval to);
  void set_held(int x, int to);
  void commit();  // what changed since the last commit stays
  void undo();    // or goes

  const RecomputePlan& plan() const { return plan_; }
  int64_t peak() const { return memory_[1].most; }
  // Returns the cost of all executions. Costs of replays are added in one fixed order, so plans with the same
  // replays cost the same to the last bit, however they came about.
  double cost() const { return base_cost_ + costs_[1]; }
  Measure measure() const { return {.peak = peak(), .cost = cost()}; }
  // Counts how often replays make the tensor after its last use.
  int made_late(int x) const;
  // Lists what lives at the first of the fullest steps, by tensor.
  std::vector<Resident> residents();
  // Visits of operations and tensors so far: the measure of work.
  int64_t work() const { return work_; }

 private:
  // The dealings of the replay at an operation with a tensor.
  struct Touch {
    int at = 0;
    bool live = false;   // it was there already
    bool made = false;   // it was not, and was made
    bool stays = false;  // often enough to stay
    bool read = false;   // the replay or the operation reads it
    bool operator==(const Touch&) const = default;
  };
  // The time between two uses of a tensor, or after its last use: then `end` is -1.
  struct Slot {
    int tensor = -1, begin = 0, end = 0;  // operations
    int drops = 0;                        // how often it is dropped before it stays
    int from = 0, to = -1;                // it lives at the start of these operations
    int until = -1;                       // the last touch that reads what is there
    std::vector<Touch> touches{};         // by time; the use at the end is one
  };
  struct Replay {
    double cost = 0;
    int64_t most = 0;            // bytes at its fullest step, beyond those at its start
    int fullest = 0;             // that step
    std::vector<int> touched{};  // slots
  };
  // A tensor as the replay that is being run sees it.
  struct Local {
    int stamp = 0, slot = -1, pending = 0, made_before = 0;
    int fresh = -1, taken = -1;  // steps
    bool live = false;
    Touch touch{};
  };
  struct Node {
    int64_t most = 0, added = 0;
  };

  void put_interval(int interval, Interval to);
  void put_held(int x, int to);
  void set_drops(int slot, int drops);
  int slot_at(int x, int t) const;
  static bool lives(const Slot& slot, int t, int& made);
  Local& enter(int x, int t);
  Local& meet(int x, int t);
  void want(int x, int t);
  int& sharing(size_t storage, int t);
  void allocate(int x, int t);
  void release(int x, int t);
  bool stays(const Local& x, int t) const;
  void execute(int o, int t);
  void settle(int o);
  void snapshot(int o, int t);
  void run(int t, int stop = -1);
  void follow(int t);
  void follow_all();
  void make_stale(int t);
  void review(int slot);
  Slot& changing(int slot);
  void cover(Slot& slot, int from, int to);
  void add_bytes(size_t node, int low, int high, int from, int to, int64_t bytes);
  void set_replay(int t, Replay& replay);

  const Graph& graph_;
  RecomputePlan plan_;
  double base_cost_ = 0;
  std::vector<int> first_slot_;            // by tensor
  std::vector<int> slot_of_;               // by interval
  std::vector<std::vector<int>> members_;  // by storage: its tensors
  std::vector<std::vector<int>> alive_;  // by storage of several: how many live at the start of an operation
  std::vector<Slot> slots_;
  std::vector<Replay> replays_;  // by operation
  // Trees over the operations: bytes at the start of each and Replay::most, and Replay::cost.
  std::vector<Node> memory_;
  std::vector<double> costs_;
  int leaves_ = 1;
  std::vector<int> stale_;      // operations whose replays have to be run again: a heap, the first one on top
  std::vector<char> is_stale_;  // by operation

  // The replay that is being run.
  std::vector<Local> local_;
  std::vector<int> entered_, list_, in_list_, counts_, counted_, changed_;
  int stamp_ = 0, step_ = 0, stop_ = -1;
  int64_t bytes_ = 0, full_ = 0;
  Replay replay_;
  std::vector<Resident> residents_;

  // Put back by undo(): the first of each list, as many as were saved.
  std::vector<std::pair<int, Slot>> old_slots_;
  std::vector<std::pair<int, Replay>> old_replays_;
  size_t saved_slots_ = 0, saved_replays_ = 0;
  std::vector<std::pair<int, Interval>> old_intervals_;
  std::vector<std::pair<int, int>> old_held_;
  std::vector<int> slot_saved_, replay_saved_;  // by slot, by operation: the last trial that changed it
  int trial_ = 1;
  int64_t work_ = 0;
};

}  // namespace gacc::passes::planner
