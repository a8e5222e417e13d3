#include "codegen/nvptx/tensor_cores.h"

#include <fmt/format.h>

#include "codegen/nvptx/instructions.h"

namespace gacc::codegen {

using gpu::assembly;

Values TensorCores::load_matrices(Value* from, bool turned) {
  llvm::Type* word = b_.getInt32Ty();
  const std::string text = std::string("ldmatrix.sync.aligned.m8n8.x4") + (turned ? ".trans" : "") +
                           ".shared.b16 {$0, $1, $2, $3}, [$4];";
  Value* four =
      assembly(b_, llvm::StructType::get(word, word, word, word), text, "=r,=r,=r,=r,r,~{memory}", {from});
  Values result;
  for (unsigned r = 0; r < 4; ++r) result.push_back(b_.CreateExtractValue(four, r));
  return result;
}

void TensorCores::multiply(const Values& x, Value* first, Value* last, Value** sum) {
  if (modern_) {
    mma(16, x, {first, last}, sum);
  } else {
    mma(8, {x[0], x[1]}, {first}, sum);
    mma(8, {x[2], x[3]}, {last}, sum);
  }
}

// sum[0..3] += x y over `depth` of the inner dimension.
void TensorCores::mma(int depth, const Values& x, const Values& y, Value** sum) {
  const auto list = [](size_t first, size_t count) {
    std::string text = "{";
    for (size_t i = first; i < first + count; ++i) text += (i == first ? "$" : ", $") + std::to_string(i);
    return text + "}";
  };
  const std::string text =
      fmt::format("mma.sync.aligned.m16n8k{0}.row.col.f32.{1}.{1}.f32 {2}, {3}, {4}, {2};", depth,
                  ir::dtype_text(type_), list(0, 4), list(4, x.size()), list(4 + x.size(), y.size()));
  std::string constraints = "=f,=f,=f,=f";
  Values operands = x;
  operands.insert(operands.end(), y.begin(), y.end());
  for (size_t i = 0; i < operands.size(); ++i) constraints += ",r";
  constraints += ",0,1,2,3";
  operands.insert(operands.end(), sum, sum + 4);
  llvm::Type* real = b_.getFloatTy();
  Value* four = assembly(b_, llvm::StructType::get(real, real, real, real), text, constraints, operands,
                         /*effects=*/false);
  for (unsigned r = 0; r < 4; ++r) sum[r] = b_.CreateExtractValue(four, r);
}

void TensorCores::copy_bytes(Value* to, Value* from, Value* bytes) {
  assembly(b_, b_.getVoidTy(), "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r,~{memory}",
           {to, b_.CreatePtrToInt(from, b_.getInt64Ty()), bytes});
}

void TensorCores::copy(Value* to, Value* from, Value* exists) {
  if (modern_) {
    copy_bytes(to, from, b_.CreateSelect(exists, word(16), word(0)));
  } else {
    llvm::Type* four = llvm::FixedVectorType::get(b_.getInt32Ty(), 4);
    Value* words = b_.CreateAlignedLoad(four, from, llvm::Align(16));
    put(to, b_.CreateSelect(exists, words, llvm::Constant::getNullValue(four)));
  }
}

void TensorCores::copy_word(Value* to, Value* from, Value* exists) {
  if (modern_) {
    Value* bytes = b_.CreateSelect(exists, word(4), word(0));
    assembly(b_, b_.getVoidTy(), "cp.async.ca.shared.global [$0], [$1], 4, $2;", "r,l,r,~{memory}",
             {to, b_.CreatePtrToInt(from, b_.getInt64Ty()), bytes});
  } else {
    Value* one = b_.CreateAlignedLoad(b_.getInt32Ty(), from, llvm::Align(4));
    put_word(to, b_.CreateSelect(exists, one, word(0)));
  }
}

void TensorCores::put(Value* to, Value* words) {
  const auto lane = [&](uint64_t i) { return b_.CreateExtractElement(words, i); };
  assembly(b_, b_.getVoidTy(), "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "r,r,r,r,r,~{memory}",
           {to, lane(0), lane(1), lane(2), lane(3)});
}

void TensorCores::put_word(Value* to, Value* one) {
  assembly(b_, b_.getVoidTy(), "st.shared.b32 [$0], $1;", "r,r,~{memory}", {to, one});
}

void TensorCores::commit() {
  if (modern_) assembly(b_, b_.getVoidTy(), "cp.async.commit_group;", "~{memory}", {});
}

void TensorCores::wait(int pending) {
  if (modern_)
    assembly(b_, b_.getVoidTy(), "cp.async.wait_group " + std::to_string(pending) + ";", "~{memory}", {});
}

}  // namespace gacc::codegen
