// Hand-written kernels by tiles (Target::emit_by_tiles), between begin and end of their function.
#pragma once

namespace gacc::codegen {

class Target;

// Attention by tensor cores: half types (bf16 from sm_80 on), heads of 16, 32, ... 128 channels.
void emit_attention_mma(Target& target);
// Convolutions as implicit matrix products (kernels/handwritten/calls.h, ConvProduct).
void emit_conv_product(Target& target);

}  // namespace gacc::codegen
