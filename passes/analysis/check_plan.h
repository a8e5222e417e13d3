// The plan checker: replays a planned module over the bytes of the arena and says what is wrong with the
// plan. It shares no code with plan-memory and knows nothing of live ranges, so that a mistake in one shows
// in the other.
#pragma once
#include <string>

#include "ir/module.h"

namespace gacc::passes {

// "" when no two live values overlap, every read sees the value meant, values are overwritten in place only
// where the kernel allows it, buffers are never touched but by writes to them, and all lies aligned inside
// the arena. Else one sentence about the first fault, with region and kernel. Of a scheduled module also:
// with the workspaces of products destroyed; and level by level, those of a level in order and in reverse,
// with what a product does at its product's place; and where a graph has two streams, with either of them as
// far ahead of the other as what the launches wait for lets it be.
std::string check_plan(const ir::Module& module);

}  // namespace gacc::passes
