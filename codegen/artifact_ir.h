// The IR of an artifact.
#pragma once
#include <string_view>

#include "ir/module.h"
#include "runtime/status.h"

namespace gacc {

// Parsed, sound and planned, or one error that says what it is not. A schedule is left out.
Status read_ir(std::string_view text, ir::Module& module);

}  // namespace gacc
