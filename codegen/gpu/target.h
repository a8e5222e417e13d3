// A GPU as a Target, and its hand-written kernels by tiles.
#pragma once
#include "codegen/emit/target.h"

namespace gacc::codegen {

std::unique_ptr<Target> make_nvptx_target(llvm::Module& module, const Body& body, const GpuTarget& gpu);

// Target::emit_by_tiles, between begin and end of the function.
// Attention by tensor cores: half types (bf16 from sm_80 on), heads of 16, 32, ... 128 channels.
void emit_attention_mma(Target& target);
// Convolutions as implicit matrix products (kernels/handwritten/calls.h, ConvProduct).
void emit_conv_product(Target& target);

}  // namespace gacc::codegen
