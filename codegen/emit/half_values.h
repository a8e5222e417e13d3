// Half precision as LLVM IR. A value of type f16 or bf16 lies in memory as 16 bits and is computed with as
// f32; every way back rounds to nearest even. Where the machine has no instruction for a conversion, or one
// that treats denormal numbers its own way (x86's for bf16), it is done with integers, so the bits are the
// same everywhere. NaN stays a (quiet) NaN; its payload depends on the machine.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <map>

#include "codegen/emit/instructions.h"

namespace gacc::codegen {

class Half {
 public:
  Half(llvm::IRBuilder<>& builder, const Instructions& has) : b_(builder), has_(has) {}

  // Lanes of i16 as they lie in memory to lanes of float, exactly, and back.
  Value* widen(Value* bits, ir::DType dtype);
  Value* narrow(Value* real, ir::DType dtype);
  // The nearest value of the type, as float.
  Value* round(Value* real, ir::DType dtype) { return widen(narrow(real, dtype), dtype); }

 private:
  Value* widen_f16(Value* bits);
  Value* narrow_f16(Value* real);
  Value* narrow_bf16(Value* real);
  Value* narrow_pairs(Value* real, ir::DType dtype);
  llvm::Type* like(Value* value, llvm::Type* element);
  Value* word(Value* like, uint32_t constant);  // i32 lanes

  llvm::IRBuilder<>& b_;
  const Instructions& has_;
  // The source of each result of widen: going back to the same type needs no rounding.
  std::map<std::pair<Value*, ir::DType>, Value*> bits_;
};

}  // namespace gacc::codegen
