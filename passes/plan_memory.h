// The contents of a planned module's arena, by category.
#pragma once
#include <cstdint>
#include <string>

#include "ir/module.h"

namespace gacc::passes {

// Bytes of the arena. Buffers are counted whole; of the transient area, what is live at its fullest kernel.
// The categories and `padding` (alignment, and gaps between live values at that kernel) add up to `peak`.
struct MemoryReport {
  int64_t weights = 0;       // params
  int64_t half_weights = 0;  // half copies of params; none with f32
  int64_t gradients = 0;     // accumulators: of gradients, the loss and the count
  int64_t optimizer = 0;     // state: moments, counters, rates
  int64_t activations = 0;   // values the forward pass made
  int64_t workspace = 0;  // what compiler-made ops made: gradients in flight, partial sums, update's values
  int64_t inputs = 0;     // the micro-batch
  int64_t padding = 0;
  int64_t peak = 0;         // the arena: what the runtime allocates
  int64_t host = 0;         // beside the arena: of the block in the host's memory
  int64_t lower_bound = 0;  // no plan of this graph in this order can be smaller
};
MemoryReport memory_report(const ir::Module& module);

// Returns the bytes of the arena that plan-memory gives this fused module. Below `budget` it searches only briefly.
int64_t arena_of(const ir::Module& fused, int64_t budget = 0);

// Returns the bytes of all buffers, with the gaps between them; what lies in another's place has none.
int64_t buffer_bytes(const ir::Module& module);

// Returns the bytes of the block in the host's memory (memory.host): of what pass host-state has put there.
int64_t host_bytes(const ir::Module& module);

// Weights from the host that the step has ahead of the kernel that runs, where there is room.
inline constexpr size_t kFetchedAhead = 2;

// Returns the most bytes that a region's values need at one kernel, in place where that is allowed. Any fused module.
int64_t transient_bytes(const ir::Module& module, const ir::Region& region);

// Returns the same where they lie, which is within `most` if a short search finds such places.
int64_t placed_bytes(const ir::Module& module, const ir::Region& region, int64_t most);

}  // namespace gacc::passes
