// An NVIDIA GPU's instructions for emit/.
#pragma once
#include <memory>

#include "codegen/emit/instructions.h"

namespace gacc::codegen {

// `f16`, `bf16`: conversions of these types; GPUs with the latter convert pairs, too.
std::unique_ptr<Instructions> nvptx_instructions(bool f16, bool bf16);

}  // namespace gacc::codegen
