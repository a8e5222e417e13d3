// A graph is captured on two streams: the second joins the capture of the first, each waits for launches of
// the other by events, and at the end the first goes on when the second has ended.
#pragma once
#include <array>
#include <map>
#include <vector>

#include "runtime/cuda/cuda_driver.h"

namespace gacc::cuda {

class Fork {
 public:
  // The driver must outlive this, and this the capture. `first` is under capture from `begin` to `end`.
  Fork(const Driver& driver, Stream first, Stream second) : driver_(driver), streams_{first, second} {}
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  ~Fork();

  Status begin();
  Stream stream(int64_t number) const { return streams_[static_cast<size_t>(number)]; }
  // The launch with that number has been queued on its stream: what waits for it may be, too.
  Status mark(int64_t launch, int64_t stream);
  // What `stream` is given next begins when that launch, which was marked, has ended.
  Status wait(int64_t launch, int64_t stream);
  Status end();

 private:
  static constexpr int64_t kWhole = -1;  // instead of a launch: all that a stream was given so far

  const Driver& driver_;
  const std::array<Stream, 2> streams_;
  std::vector<Event> events_;
  std::map<int64_t, Event> marks_;  // the latest event of a launch
};

}  // namespace gacc::cuda
