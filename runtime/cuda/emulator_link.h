// The words between the CUDA device and the emulator, beyond the driver's calls. The emulator,
// libgacc-emu.so, exports the driver's names and five more, which a real driver does not have.
#pragma once
#include <string>
#include <vector>

#include "runtime/cuda/cuda_driver.h"
#include "runtime/plan.h"

namespace gacc::cuda {

class EmulatorLink {
 public:
  // Finds the emulator's own functions in the library that `driver` was opened from.
  Status open(const Driver& driver);
  // Names the parts of the arena that the plan uses: each buffer, each input, and what lies between for
  // values. A kernel that touches anything else (the padding between them) is then reported.
  void declare_live(const Plan& plan, Pointer arena) const;
  // And one more part.
  void declare_live(Pointer arena, int64_t offset, int64_t bytes, const char* name) const {
    declare_(arena, static_cast<uint64_t>(offset), static_cast<uint64_t>(bytes), name);
  }
  // Tells which values begin or end while the next launch on the stream runs, counted from that launch on.
  // They hold until the next call.
  Status values(Stream stream, Pointer arena, const std::vector<PlanValue>& values) const;
  // The reports so far, and how many there are.
  int64_t reports(std::string& text) const;
  // Warp instructions executed so far.
  uint64_t executed() const { return executed_(); }

 private:
  size_t (*count_)() = nullptr;
  uint64_t (*executed_)() = nullptr;
  int (*values_)(Stream stream, uint64_t allocation, const int64_t* values, size_t count) = nullptr;
  size_t (*text_)(char* to, size_t bytes) = nullptr;
  void (*declare_)(uint64_t allocation, uint64_t offset, uint64_t bytes, const char* name) = nullptr;
};

// A part of the arena and what it is called in a report.
struct NamedBytes {
  int64_t offset = 0, bytes = 0;
  std::string name;
};
// The parts that a plan uses, in order of their offsets, without overlaps. Values that are not buffers share
// one range, because at different times different ones lie there.
std::vector<NamedBytes> named_bytes(const Plan& plan);

}  // namespace gacc::cuda
