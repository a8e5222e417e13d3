// The widest instructions that the host device uses.
#pragma once

namespace gacc::codegen {

enum class Isa { sse, avx2, avx512 };

// Returns the widest that the program may use: any, unless oneDNN's own variable ONEDNN_MAX_CPU_ISA says less (AVX2,
// SSE41). Then kernels and products keep to them, too, and a machine computes what a smaller one does.
Isa most_isa();

}  // namespace gacc::codegen
