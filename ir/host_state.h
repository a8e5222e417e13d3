// State in the host's memory (memory.host), which is copied through the arena while `update` works with it: the copies
// in a region. docs/ir.md R33 has the rules about them.
#pragma once
#include <optional>

#include "ir/op_info.h"

namespace gacc::ir {

// Copies of state: those of weights that the step reads (host.fetch) make values, and are ops like any other.
inline bool is_copy(const Op& op) { return op.info->lowering == Lowering::copy && op.info->results == 0; }
// Returns true if the step only reads the weight, so that `host.fetch` may copy it from the host: a frozen one, or the
// half copy of a trained one.
inline bool is_fetched(const Buffer& buffer) {
  return (buffer.role == BufferRole::weight && !buffer.trainable) || buffer.role == BufferRole::half;
}
// Returns true if the region fetches weights from the host.
bool fetches(const Region& region);
// Returns true if the region takes state from the host and gives it back.
bool passes_state(const Region& region);
inline constexpr int32_t kStreamOfFetches =
    2;  // of a step; its second stream has sums, and products of weights
// Returns the stream of a launch in such a region: the second for copies in, the third for copies out.
int32_t stream_of_state(const Region& region, const Launch& launch);
// Returns true if the buffer's bytes are the host's: it lies there, or is a part of one that does.
bool is_on_host(const Module& module, BufferId buffer);

// The launches of a region from its first copy to its last one. They run if the flag of the copies is not 0; else
// none of them does, and nothing is moved.
struct StateSection {
  Operand flag{};
  size_t first = 0, last = 0;  // of the schedule's launches, or of ops
};
std::optional<StateSection> section_of_ops(const Region& region);
std::optional<StateSection> section_of_launches(const Region& region);

}  // namespace gacc::ir
