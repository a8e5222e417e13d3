// Live ranges of a region's values at kernel granularity, and what must be live at once.
#pragma once
#include "ir/kernel.h"

namespace gacc::ir {

// A value that owns bytes (register values and aliases have none): live in kernels [first, last], inclusive.
// Inputs are live from 0 and come first; yielded values to the last.
struct LiveRange {
  ValueId value;
  int first = 0;
  int last = 0;
  int64_t bytes = 0;  // at the most samples that the region takes
};
// `times`: when each kernel runs, in any order, and -1 for a kernel that is no launch; without it a kernel
// runs at its number.
std::vector<LiveRange> live_ranges(const Module& module, const Region& region,
                                   const std::vector<Kernel>& kernels, const std::vector<int>& times = {});

// A slot of state from the host (role `slot`): live from its copy in to its copy out. Times as above.
struct SlotRange {
  BufferId buffer;
  int first = 0;
  int last = 0;
  int64_t bytes = 0;
};
std::vector<SlotRange> slot_ranges(const Module& module, const std::vector<Kernel>& kernels,
                                   const std::vector<int>& times = {});

}  // namespace gacc::ir
