// The building blocks of GPU kernels besides arithmetic: special registers, the block's barrier, exchanges in a warp,
// shared memory. Everything that threads do together is convergent, or LLVM would duplicate or move it.
#pragma once
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
class GlobalVariable;
}

namespace gacc::codegen::gpu {

// A special register (i32): llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x and its like.
llvm::Value* special(llvm::IRBuilder<>& b, llvm::Intrinsic::ID id);
// Inline assembly with a result of this type. Where it has `effects`, LLVM keeps it even unused.
llvm::Value* assembly(llvm::IRBuilder<>& b, llvm::Type* result, const std::string& text,
                      const std::string& constraints, const std::vector<llvm::Value*>& operands,
                      bool effects = true);
// All threads of the block wait for each other, and see each other's memory.
void barrier(llvm::IRBuilder<>& b);
// The value (32 bits) of the lane whose number differs by exactly this bit (1, 2, 4, 8 or 16). All lanes of a
// team act, which is `team` neighbouring lanes, a power of two.
llvm::Value* exchange(llvm::IRBuilder<>& b, llvm::Value* value, unsigned distance, unsigned team = 32);
// The value (32 bits) that the lane has whose number is `member` among a team of `team` neighbouring lanes, a
// power of two; all 32 lanes act.
llvm::Value* of_member(llvm::IRBuilder<>& b, llvm::Value* value, unsigned member, unsigned team);
// Bit L of the result: the condition (i1) of lane L; all 32 lanes act.
llvm::Value* ballot(llvm::IRBuilder<>& b, llvm::Value* condition);
// The same word (i32), of which LLVM knows nothing: what is computed from it stays where it is. Else it would keep
// an induction variable for everything that a loop computes from its own, in more registers than there are.
llvm::Value* opaque(llvm::IRBuilder<>& b, llvm::Value* word);
// 16 bits of global memory where the condition (i1) holds, else 0, without a branch.
llvm::Value* load_half_where(llvm::IRBuilder<>& b, llvm::Value* address, llvm::Value* condition);
// An array in shared memory, undefined at first, at a multiple of 16 bytes; "NAME_shared".
llvm::GlobalVariable* shared_array(llvm::Module& module, llvm::Type* element, uint64_t count,
                                   const std::string& name);

}  // namespace gacc::codegen::gpu
