// The types in which frozen parameters lie in memory, as precision.frozen asks for them.
#pragma once
#include <vector>

#include "ir/module.h"

namespace gacc::passes {

// Returns the type of every buffer of a module in phase `half`, where those of the pass frozen-blocks are in blocks.
std::vector<ir::Type> stored_types(const ir::Module& module);

}  // namespace gacc::passes
