// Kernels that only a GPU has (Target::emit_own), between begin and end of their function.
#pragma once

namespace gacc::codegen {

class Target;

// Attention by tensor cores: of half types (bf16 from sm_80 on), heads of 16, 32, ... 128 channels.
void emit_attention_mma(Target& target);
// Convolutions as implicit matrix products (kernels/special/calls.h, ConvProduct).
void emit_conv_product(Target& target);

}  // namespace gacc::codegen
