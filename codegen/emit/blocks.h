// Numbers in ggml's blocks (ir/dtypes.def) as LLVM IR: what runtime/blocks.h does on the host, for kernels.
#pragma once
#include "codegen/emit/target.h"

namespace gacc::codegen {

// Returns `lanes` numbers from `index` on, as f32: 16 at most, of which `index` is a multiple, so all are of one block.
Value* load_numbers(Target& t, int32_t slot, Value* index, unsigned lanes);
// Writes a block as ggml's reference quantises its numbers. A scale beyond f16 becomes an infinity. `number` is called
// for a column of the block, and more than once for each.
void store_block(Target& t, int32_t slot, Value* block, const std::function<Value*(Value* column)>& number);

}  // namespace gacc::codegen
