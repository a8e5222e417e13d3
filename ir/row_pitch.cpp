#include "ir/row_pitch.h"

#include <algorithm>

namespace gacc::ir {

int64_t room_bytes(const Buffer& buffer) {
  const Type& type = buffer.type;
  const int64_t bytes = type_bytes(type, 1);
  const bool takes_part =
      (is_narrow(type.dtype) && !is_blocks(type.dtype)) || buffer.kind == BufferKind::accum;
  if (type.shape.size() != 2 || !takes_part || wanted_pitch(type.shape[0]) == 0) return bytes;
  return bytes / type.shape[0] * aligned(type.shape[0], kLibraryStep);
}

bool may_have_pitch(const Region& region, const std::vector<Kernel>& kernels, ValueId value) {
  const Operand operand(value);
  const auto is_value = [&](const Operand& other) { return other == operand; };
  const Shape& shape = region[value].type.shape;
  if (shape.size() < 2 || contains(region.inputs, value)) return false;
  for (const Yield& yield : region.yields)
    if (is_value(yield.what)) return false;
  return std::ranges::all_of(kernels, [&](const Kernel& kernel) {
    const Op& first = region.ops[kernel.members.front().op];
    if (kernel.form == KernelForm::alias)  // it reads and writes nothing
      return !is_value(first.operands[0]) && first.results[0] != value;
    const bool meets =
        std::ranges::any_of(kernel.reads, is_value) || std::ranges::any_of(kernel.writes, is_value);
    if (!meets || kernel.form == KernelForm::gemm) return true;
    return kernel.form != KernelForm::handwritten && kernel.inner == 0 && shape == kernel.domain;
  });
}

}  // namespace gacc::ir
