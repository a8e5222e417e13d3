// The sum over ranks of what a window has accumulated, with the bits of one rank: all ranks send their nodes
// of the tree over lanes, shard by shard, to the rank that adds that shard, in the tree's order; and get the
// sums of the other shards. No algorithm of a library has a say in an addition.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/ranks/collective.h"
#include "runtime/ranks/lanes.h"

namespace gacc {

// A sum of the window in the arena. A process has it as nodes of the tree over lanes (runtime/ranks/lanes.h).
struct LaneSum {
  int64_t elements = 0;  // of a node; of what ranks share, of a shard
  bool integer = false;  // i32, else f32
  double kept = 1;       // by each launch, of what the launches before it have summed (PlanBuffer::kept)
  std::vector<int64_t> nodes{};  // addresses of this process's nodes, from left to right
  int64_t target = 0;            // the address of the last of them, where the sum of all goes
  // Not 0 for what ranks share: elements of a whole node. Rank r then wants its shard alone, `elements` numbers from
  // number r * elements on, with zeros behind the node's end. The target is the first number of the last node.
  int64_t whole = 0;
};

// Bytes of the arena of which each rank makes a shard: rank r those from r * shard on, as far as they go.
struct SharedBytes {
  int64_t offset = 0, bytes = 0;
  int64_t shard = 0;
};

// The words (f32 or i32) that a node has of a list of scalars.
struct LaneScalars {
  LaneRange lanes;
  std::vector<uint32_t> words{};
};
// Adds word number `word` of the nodes: f32 by the tree over the lanes, i32 exactly.
double sum_words(int64_t lanes, std::span<const LaneScalars> nodes, size_t word, bool integer);

// The nodes of all ranks, from left to right, and how many each has. A lane in none of them adds nothing.
struct LaneNodes {
  std::vector<LaneRange> all{};
  std::vector<int64_t> held{};
};
// Gathers them; `mine` are this rank's, from left to right. Waits for all ranks.
Result<LaneNodes> gather_nodes(Collective& ranks, std::span<const LaneRange> mine);

// Sums in pieces that fit into `scratch`, host memory of the same size on all ranks: at least 8 bytes for every rank.
// All of the sums are wanted whole, or of all a rank wants a shard (LaneSum::whole). Where the arena is in the
// host's memory, a rank's own nodes are used up.
Status sum_over_ranks(Collective& ranks, Device& device, const LaneWindow& window, const LaneNodes& nodes,
                      std::span<const LaneSum> sums, std::span<std::byte> scratch);

// Exchanges with the other ranks what a session with a part of the lanes has of a window.
class RankExchange {
 public:
  // All must outlive it.
  RankExchange(Collective& ranks, Device& device, const Plan& plan)
      : ranks_(ranks), device_(device), plan_(plan) {}
  // After the device's `load`, on every rank: sums go from device to device, where all have such a link. Else they go
  // through the hosts, and the result says why.
  Result<std::string> open_link();
  const DeviceLink* link() const { return link_; }
  // Between the last step and the update: afterwards every rank has the sum of the window at each target.
  Status sum(const LaneWindow& window, std::span<const LaneRange> nodes, std::span<const LaneSum> sums);
  // The nodes of all ranks, from left to right, of so many words each; `mine`: of this one.
  Result<std::vector<LaneScalars>> gather(const std::vector<LaneScalars>& mine, size_t words);
  int rank() const { return ranks_.rank(); }
  int ranks() const { return ranks_.size(); }
  // Every rank has its shards at the beginning of each; then all ranks have all in their places.
  Status gather_shards(std::span<const SharedBytes> shared);
  // The bytes of all ranks, of each as many, one after the other.
  Result<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine);

  // The costs of `sum` to this rank so far.
  int64_t sums() const { return sums_; }
  int64_t bytes_sent() const { return bytes_; }
  double seconds() const { return seconds_; }
  double waited() const { return waited_; }  // seconds, for the slowest rank, before sums began

 private:
  std::span<std::byte> scratch();
  Status sum_over_link(const LaneWindow& window, const LaneNodes& nodes, std::span<const LaneSum> sums);
  // Does it, and counts its seconds and the bytes sent.
  template <class Work>
  auto measured(double& seconds, Work work);

  Collective& ranks_;
  Device& device_;
  const Plan& plan_;
  DeviceLink* link_ = nullptr;
  std::vector<std::byte> own_;  // scratch, where the arena has none for the host
  int64_t sums_ = 0, bytes_ = 0;
  double seconds_ = 0, waited_ = 0;
};

// The lanes of this process; without an exchange all.
LaneRange own_lanes(const Plan& plan, const RankExchange* exchange);

}  // namespace gacc
