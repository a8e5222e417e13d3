// An NVIDIA GPU's instructions for emit/.
#pragma once
#include <memory>

#include "codegen/emit/instructions.h"

namespace gacc::codegen {

// `bf16`: converts to it, and pairs of numbers.
std::unique_ptr<Instructions> nvptx_instructions(bool bf16);

}  // namespace gacc::codegen
