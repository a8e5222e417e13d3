// Where in the arena a library's matrix product may work: the bytes that hold nothing while it runs. They
// cost no memory, because the arena has them anyway for what lives at other times.
#pragma once
#include <optional>
#include <vector>

#include "ir/kernel.h"
#include "runtime/plan.h"

namespace gacc {

// Bytes [begin, end).
struct TakenBytes {
  int64_t begin = 0, end = 0;
};

// The largest range inside [0, arena_bytes) that meets none of `taken`, the first of equals, in multiples of
// kWorkspaceAlignment and not above kMostWorkspace; nothing when none is left.
std::optional<PlanWorkspace> largest_free(std::vector<TakenBytes> taken, int64_t arena_bytes);

// For each of the region's kernels that is a matrix product what is free while it runs: no buffer lies there,
// none of its operands and results, nothing that an earlier kernel wrote (or that came in) and a later one
// reads. The kernels are the region's, in the order in which they are launched; the module is planned. What
// is free for a full micro-batch is free for a smaller one, whose values begin at the same places.
std::vector<std::optional<PlanWorkspace>> product_workspaces(const ir::Module& module,
                                                             const ir::Region& region,
                                                             const std::vector<ir::Kernel>& kernels);

}  // namespace gacc
