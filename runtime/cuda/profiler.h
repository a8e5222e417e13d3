// Measures launches on the GPU: an event after each, on the stream. The emulator has no clock: there it counts the warp
// instructions that each executed.
#pragma once
#include <vector>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/emulator_link.h"
#include "runtime/device.h"

namespace gacc::cuda {

class Profiler {
 public:
  // `emulator` is null on a GPU. Both must outlive this.
  void open(const Driver& driver, const EmulatorLink* emulator);
  bool is_open() const { return driver_ != nullptr; }
  bool full() const { return timings_.size() >= kMostTimings; }
  // Before a program's first launch; and after each, `queued`, which does it.
  Status mark(Stream stream);
  Status queued(Program program, int64_t launch, const std::string& name, int64_t batch, Stream stream);
  // After everything queued has run.
  Status read(std::vector<Timing>& timings);
  void close();

 private:
  const Driver* driver_ = nullptr;
  const EmulatorLink* emulator_ = nullptr;
  std::vector<Event> events_;     // marks, in order; on a GPU
  std::vector<uint64_t> counts_;  // in the emulator
  std::vector<Timing> timings_;
  std::vector<size_t> ends_;  // the mark after each timing; the one before it is its begin
};

}  // namespace gacc::cuda
