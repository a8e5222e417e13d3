// Attention by tensor cores: of half types (bf16 from sm_80 on), heads of 16, 32, ... 128 channels.
#pragma once

namespace gacc::codegen {

class Target;

void emit_attention_mma(Target& t);
void emit_attention_mma_gradient(Target& t);

}  // namespace gacc::codegen
