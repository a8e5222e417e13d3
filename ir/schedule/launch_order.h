// The order of launches on several streams: which have ended before which begin, by the order of each stream and by
// `after`.
#pragma once
#include <array>
#include <vector>

#include "ir/dependence.h"

namespace gacc::ir {

// Launches are numbered as they stand in the schedule.
class LaunchOrder {
 public:
  explicit LaunchOrder(const Schedule& schedule);

  std::optional<size_t> launch_of(int32_t kernel) const;
  bool before(size_t a, size_t b) const;  // launch a has ended before b begins
  bool concurrent(size_t a, size_t b) const {
    return places_[a].stream != places_[b].stream && !before(a, b) && !before(b, a);
  }
  // Makes `b` wait for `a`, which stands before it on another stream, and with it all that follows b there.
  // Launches are given their waits in the order of the lines.
  void wait(size_t a, size_t b);

 private:
  struct Place {
    size_t stream = 0, number = 0;         // the how-manieth of its stream
    std::array<size_t, kStreams> ended{};  // of each other stream, before it begins
    void wait(const Place& other);
  };
  std::vector<Place> places_;
  std::vector<std::pair<int32_t, size_t>> launches_;  // kernels, sorted, with their launches
};

// The bytes that each launch touches, by whichever engine: a product what it does besides, too, and what it
// works in counts as written.
std::vector<Touched> launch_touched(const Module& module, const Region& region,
                                    const std::vector<Kernel>& kernels);

// Gives every launch the `after` that follows from the streams.
void add_waits(const std::vector<Touched>& touched, Schedule& schedule);

}  // namespace gacc::ir
