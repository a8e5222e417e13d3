// The open window: how many launches it has, and what they have summed, by the lanes of this rank
// (runtime/ranks/lanes.h). With one lane the sums are the accumulators themselves.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/ranks/lanes.h"
#include "runtime/ranks/rank_sums.h"
#include "runtime/reports.h"
#include "runtime/session/arena.h"
#include "runtime/session/sharded_update.h"

namespace gacc {

class OpenWindow {
 public:
  // All must outlive it; `exchange` is null where one rank is alone.
  OpenWindow(Arena& arena, ShardedUpdate& update, RankExchange* exchange)
      : arena_(arena), update_(update), exchange_(exchange) {}
  // Finds the sums and the places of nodes; an error where the artifact has no room for this rank's lanes.
  Status open();

  int64_t launches() const { return launches_; }
  int64_t samples() const { return samples_; }
  // True for a launch that this rank makes.
  bool has_launch(int64_t position) const;
  // Before each launch, whichever rank makes it: closes the lane before, if the launch opens another.
  Status begin_launch();
  void count_launch(int64_t samples);
  void resume(int64_t launches, int64_t samples);

  // After the last launch: adds the sums of all lanes, over all ranks.
  Status finish_lanes();
  // Returns the sums of the window so far. The nodes of an open window are added on the host, and stay as they are.
  Result<WindowSums> sums();
  Result<std::vector<float>> read_sum(const PlanBuffer& buffer);
  // A buffer as a checkpoint has it. With several lanes that is its state when the window began: the sums of an open
  // window are only a part of the tree.
  Result<std::vector<std::byte>> read_for_checkpoint(const PlanBuffer& buffer);

  // Ends the window: forgets it after an update, or clears its sums, too.
  void forget();
  Status drop();

 private:
  Status find_nodes();
  Status check_room(size_t places) const;
  std::vector<int64_t> node_offsets(const PlanBuffer& sum) const;
  Status close_lane(const LaneStack::Close& close, std::span<const LaneRange> nodes);
  bool is_whole() const;

  Arena& arena_;
  ShardedUpdate& update_;
  RankExchange* exchange_;
  int64_t launches_ = 0, samples_ = 0;
  std::vector<const PlanBuffer*> sums_;  // of the loss, the count, and the weights if there are
  // With several lanes.
  LaneRange mine_;
  LaneStack stack_;
  std::map<const PlanBuffer*, std::vector<const PlanBuffer*>> nodes_;  // of a sum, by place
  std::vector<const PlanBuffer*> join_, keep_;                         // the flags of `close`, by place
  const PlanBuffer* rest_ = nullptr;
  // The share of a node that later lanes keep, by place; for sums of which a launch keeps a part alone.
  std::map<const PlanBuffer*, std::vector<const PlanBuffer*>> kept_;
  std::map<const PlanBuffer*, std::vector<std::byte>> opening_;  // scalars as the window found them
};

}  // namespace gacc
