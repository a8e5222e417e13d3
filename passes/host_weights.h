// Frozen and half weights in the host's memory (memory.host). The pass itself is declared in passes/pass.h.
#pragma once
#include <cstdint>

#include "ir/module.h"

namespace gacc::passes {

// Returns the bytes of all frozen and half weights that lie there, or may: of a fused module.
int64_t possible_weights(const ir::Module& fused);

}  // namespace gacc::passes
