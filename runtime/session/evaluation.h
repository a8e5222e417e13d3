// An evaluation: micro-batches in any number, of which the device sums the loss and the metrics. The sums are f32, and
// counts are i32, so the host takes them over before they lose digits or wrap. Launches are dealt to lanes by position
// (runtime/ranks/lanes.h); a lane's sums go to the host when it ends. Where the plan has answers, the host reads those
// of each launch.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/ranks/rank_sums.h"
#include "runtime/reports.h"
#include "runtime/session/arena.h"
#include "runtime/session/judgement.h"

namespace gacc {

class Evaluation {
 public:
  // Both must outlive it; `exchange` is null where one rank is alone.
  Evaluation(Arena& arena, RankExchange* exchange) : arena_(arena), exchange_(exchange) {}
  // Finds the sums that the plan's metrics need.
  Status open();

  // Sets the sums to zero. `launches` is how many there will be, by which they are dealt to lanes; 0: one lane.
  Status begin(int64_t launches = 0);
  // True for a launch that this rank makes.
  bool has(int64_t position) const;
  // Adds a micro-batch; with `measure` that of the prediction before, of which the inputs are looked at that it reads.
  // Waits at the first one of a lane, where the host takes over the sums, and where there are answers to read.
  Status add(InputBytes inputs, int64_t samples, Program program = Program::eval);
  // Counts one that another rank adds.
  Status skip(int64_t samples) { return next({}, samples); }
  int64_t samples() const { return samples_; }  // of an evaluation that has not ended
  Result<EvalReport> end();

 private:
  Status clear();
  Status take_over();
  Status end_lane();
  Status next(InputBytes inputs, int64_t samples);
  Status set_shift(InputBytes inputs);
  Status judge(InputBytes inputs, int64_t samples, Program program);
  Status judge_all_ranks();
  int64_t lane(int64_t position) const;

  Arena& arena_;
  RankExchange* exchange_;
  std::vector<const PlanBuffer*> sums_;
  int64_t most_unread_ = 1;  // launches
  int64_t samples_ = 0, launches_ = 0, expected_ = 0;
  int64_t unread_ = 0;         // launches that the host has not taken over
  std::vector<double> taken_;  // of the open lane; counts are exact to 2^53
  std::optional<Judgement> judgement_;
  std::vector<LaneScalars>
      nodes_;  // of the lanes that are done: a word of each sum, then two of what was taken over
};

}  // namespace gacc
