// The plan checker: replays a planned module over the bytes of the arena and says what is wrong with the
// plan. It shares no code with plan-memory and knows nothing of live ranges, so that a mistake in one shows
// in the other.
#pragma once
#include <span>
#include <string>

#include "ir/module.h"

namespace gacc::passes {

// Bytes that a kernel works in besides what it reads and writes, and leaves as they come.
struct Scratch {
  ir::RegionKind region;
  size_t kernel = 0;  // which of the region's, in order
  int64_t offset = 0, bytes = 0;
};

// "" when no two live values overlap, every read sees the value meant, values are overwritten in place only
// where the kernel allows it, buffers are never touched but by writes to them, and all lies aligned inside
// the arena; with what kernels work in taken into account. Else one sentence about the first fault, with
// region and kernel.
std::string check_plan(const ir::Module& module, std::span<const Scratch> scratch = {});

}  // namespace gacc::passes
