// The instructions of a GPU that products by tensor cores are made of, as LLVM IR: mma.sync over half types
// with f32 sums, ldmatrix, and copies of memory into shared memory. All of inline assembly, since LLVM's
// intrinsics do not select for every target (docs/gpu.md, "Traps of the back end"), and convergent where
// threads act together.
#pragma once
#include "codegen/emit/instructions.h"

namespace gacc::codegen {

class TensorCores {
 public:
  // `type`: f16 or bf16 (that one only where `modern`). `modern`: sm_80 and later, with cp.async and mma over
  // 16 of the inner dimension; else copies travel through registers, and mma is over 8.
  TensorCores(llvm::IRBuilder<>& builder, ir::DType type, bool modern)
      : b_(builder), type_(type), modern_(modern) {}

  // Four 8 x 8 matrices of 16-bit elements; lane 8 i + r names row r of matrix i by its shared address (i32),
  // 16 bytes each. Of each matrix a lane gets two neighbours in one register (i32): row lane / 4, columns
  // 2 (lane % 4) and the next one; `turned`: of its transpose.
  Values load_matrices(Value* from, bool turned);

  // sum[0..3] += x y: 16 x 8 sums over 16 of the inner dimension. x: matrices (upper, lower) of the inner
  // dimension's first 8, then of the last 8; y: of its first and last 8, transposed. A lane's sums are of row
  // lane / 4 columns 2 (lane % 4) and the next one, then the same 8 rows on.
  void multiply(const Values& x, Value* first, Value* last, Value** sum);

  // 16 bytes into shared memory, zeros where not `exists`. `from`: readable in any case, a multiple of 16.
  // Modern ones are there when they have been waited for.
  void copy(Value* to, Value* from, Value* exists);
  // The same of the first `bytes` (i32), zeros behind them, where `modern`.
  void copy_bytes(Value* to, Value* from, Value* bytes);
  // The same of one word of 4 bytes.
  void copy_word(Value* to, Value* from, Value* exists);
  void put(Value* to, Value* words);     // i32 x 4
  void put_word(Value* to, Value* one);  // i32
  void commit();                         // ends a group of copies
  void wait(int pending);                // until at most the last `pending` groups of this thread travel

 private:
  void mma(int depth, const Values& x, const Values& y, Value** sum);
  Value* word(uint32_t value) { return b_.getInt32(value); }

  llvm::IRBuilder<>& b_;
  const ir::DType type_;
  const bool modern_;
};

}  // namespace gacc::codegen
