// The sum over ranks of what a window has accumulated, with the bits of one rank: all ranks send their nodes
// of the tree over lanes, slice by slice, to the rank that adds that slice, in the tree's order; and get the
// sums of the other slices. No algorithm of a library has a say in an addition.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/ranks/collective.h"
#include "runtime/ranks/lanes.h"

namespace gacc {

// A sum of the window in the arena, as the lanes of this process have it: `nodes` are the addresses of its
// nodes, from left to right; `target`, which is the last of them, is where the sum of all is wanted.
struct LaneSum {
  int64_t elements = 0;
  bool integer = false;  // i32, else f32
  double kept = 1;       // by each launch, of what the launches before it have summed (PlanBuffer::kept)
  std::vector<int64_t> nodes{};
  int64_t target = 0;
  // Not 0: a node has so many elements, of which rank r wants `elements` from number r * elements on alone,
  // and zeros where there are no more. The target is the first element of the last node.
  int64_t whole = 0;
};

// Bytes of the arena of which every rank makes a slice: rank r those from r * slice on, as far as they go.
struct SharedBytes {
  int64_t offset = 0, bytes = 0;
  int64_t slice = 0;
};

// The words (f32 or i32) that a node has of a list of scalars.
struct LaneScalars {
  LaneRange lanes;
  std::vector<uint32_t> words{};
};

// The nodes of all ranks, from left to right, and how many each has. A lane that is in none is none of the sum.
struct LaneNodes {
  std::vector<LaneRange> all{};
  std::vector<int64_t> held{};
};
// `mine`: this rank's, from left to right. Waits for all ranks.
Result<LaneNodes> gather_nodes(Collective& ranks, std::span<const LaneRange> mine);

// In pieces that fit into `scratch`, host memory of the same size on all ranks: at least 8 bytes for every rank. All
// of the sums are wanted whole, or of all a rank wants a slice (LaneSum::whole). Where the arena is in the host's
// memory, a rank's own nodes are used up.
Status sum_over_ranks(Collective& ranks, Device& device, const LaneWindow& window, const LaneNodes& nodes,
                      std::span<const LaneSum> sums, std::span<std::byte> scratch);

// What several ranks do where one alone has all lanes: what a session with a part of them asks of the others.
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
  // Every rank has its slices at the beginning of each; then all ranks have all in their places.
  Status gather_slices(std::span<const SharedBytes> shared);
  // The bytes of all ranks, of each as many, one after the other.
  Result<std::vector<std::byte>> gather_bytes(std::span<const std::byte> mine);

  // What `sum` has cost this rank so far.
  int64_t sums() const { return sums_; }
  int64_t bytes_sent() const { return bytes_; }
  double seconds() const { return seconds_; }
  double waited() const { return waited_; }  // seconds, for the slowest rank, before sums began

 private:
  std::span<std::byte> scratch();
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

}  // namespace gacc
