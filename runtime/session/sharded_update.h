// The optimizer's update, and the buffers that it moves. Ranks may share these (memory.shard, passes/shard.cpp):
// then a rank has a shard of a tensor, its rows of it, and the ranks exchange them around the update. Everybody else
// reads and writes whole tensors here.
#pragma once
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "runtime/ranks/rank_sums.h"
#include "runtime/session/arena.h"

namespace gacc {

// True for what a window adds up.
bool is_window_sum(const PlanBuffer& buffer);

class ShardedUpdate {
 public:
  // Both must outlive it; `exchange` is null where one rank is alone.
  ShardedUpdate(Arena& arena, RankExchange* exchange) : arena_(arena), exchange_(exchange) {}
  // Finds the shards, and refuses another number of ranks than the artifact is for.
  Status open();
  // Runs the program `init`; afterwards this rank has its shard of what `init` has made whole. The buffers of `given`
  // are written next, all of each: `init` need not.
  Status init(std::span<const PlanBuffer* const> given);
  // Runs the program `update`, cut where ranks have to know of each other's part of a sum.
  Status run();

  // The window's sum of that buffer, as ranks add it: whole, or each rank its shard.
  LaneSum sum_of(const PlanBuffer& buffer, std::vector<int64_t> nodes) const;
  // Tells that the shards of gradients have (or no longer have) the window's sum over all ranks.
  void set_summed(bool summed) { summed_ = summed && arena_.plan().shard > 0; }

  // The buffer that has this rank's rows of it; null where every rank has it whole.
  const PlanBuffer* shard_of(const PlanBuffer& buffer) const;
  // The whole buffer. All ranks that share it must call this. Waits.
  Result<std::vector<std::byte>> read(const PlanBuffer& buffer);
  Result<std::vector<float>> read_floats(const PlanBuffer& buffer);
  // `bytes` begin at byte `first` of the whole; this rank writes what it has of them.
  Status write(const PlanBuffer& buffer, int64_t first, std::span<const std::byte> bytes);

 private:
  int64_t rank() const { return exchange_ == nullptr ? 0 : exchange_->rank(); }
  Status move_own(const SharedBytes& from, int64_t to);

  Arena& arena_;
  RankExchange* exchange_;
  std::map<BufferRole, std::vector<SharedBytes>> shared_;  // by the role of the whole, but for masters
  std::map<const PlanBuffer*, const PlanBuffer*> shards_;  // by the whole: its shard or master
  bool summed_ = false;
};

}  // namespace gacc
