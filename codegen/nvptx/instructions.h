// An NVIDIA GPU's instructions: those that emit/ asks for, and the building blocks of kernels besides arithmetic, which
// are special registers, the block's barrier, exchanges in a warp and shared memory. Everything that threads do
// together is convergent, or LLVM would duplicate or move it.
#pragma once
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <memory>

#include "codegen/emit/instructions.h"

namespace gacc::codegen {

// `bf16`: converts to it, and pairs of numbers.
std::unique_ptr<Instructions> nvptx_instructions(bool bf16);

namespace gpu {

// A special register (i32): llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x and its like.
Value* special(llvm::IRBuilder<>& b, llvm::Intrinsic::ID id);
// Inline assembly with a result of this type. Where it has `effects`, LLVM keeps it even unused.
Value* assembly(llvm::IRBuilder<>& b, llvm::Type* result, const std::string& text,
                const std::string& constraints, const Values& operands, bool effects = true);
// All threads of the block wait for each other, and see each other's memory.
void barrier(llvm::IRBuilder<>& b);
// The value (32 bits) of the lane whose number differs by exactly this bit (1, 2, 4, 8 or 16). All lanes of a
// team act, which is `team` neighbouring lanes, a power of two.
Value* exchange(llvm::IRBuilder<>& b, Value* value, unsigned distance, unsigned team = 32);
// The same word (i32), of which LLVM knows nothing: what is computed from it stays where it is. Else it would keep
// an induction variable for everything that a loop computes from its own, in more registers than there are.
Value* opaque(llvm::IRBuilder<>& b, Value* word);
// 16 bits of global memory where the condition (i1) holds, else 0, without a branch.
Value* load_half_where(llvm::IRBuilder<>& b, Value* address, Value* condition);
// An array in shared memory, undefined at first, at a multiple of 16 bytes; "NAME_shared".
llvm::GlobalVariable* shared_array(llvm::Module& module, llvm::Type* element, uint64_t count,
                                   const std::string& name);

}  // namespace gpu
}  // namespace gacc::codegen
