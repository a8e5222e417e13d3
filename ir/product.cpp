#include "ir/product.h"

#include "ir/dependence.h"
#include "ir/row_pitch.h"

namespace gacc::ir {

Matrix matrix(const Shape& shape) {
  const auto last = shape.empty() ? shape.end() : shape.end() - 1;
  return {extent_of(Shape(shape.begin(), last)), extent_of(Shape(last, shape.end()))};
}

ProductCall product_of(const Module& module, const Region& region, const Op& op) {
  // The op either writes its first operand, to which it adds, or has a result.
  const bool adds = op.info->accumulates;
  const OpView view{module, region, op};
  ProductCall call;
  call.a = op.operands[adds ? 1 : 0];
  call.b = op.operands[adds ? 2 : 1];
  call.c = adds ? op.operands[0] : Operand(op.results[0]);
  const Matrix a = matrix(operand_type(module, region, call.a).shape);
  const Matrix b = matrix(operand_type(module, region, call.b).shape);
  const bool ta = view.flag("ta"), tb = view.flag("tb");
  call.m = ta ? a.columns : a.rows;
  call.k = ta ? a.rows : a.columns;
  call.n = tb ? b.rows : b.columns;
  const auto pitch = [&](const Operand& operand) { return operand_type(module, region, operand).pitch; };
  const auto rows_of = [&](const Operand& operand, const Extent& dense) {
    return pitch(operand) == 0 ? dense : Extent{pitch(operand), false};
  };
  if (pitch(call.a) != 0 || pitch(call.b) != 0 || pitch(call.c) != 0)
    call.pitch = {rows_of(call.a, a.columns), rows_of(call.b, b.columns), rows_of(call.c, call.n)};
  return call;
}

namespace {

bool has_room(const Module& module, const Operand& operand) {
  const BufferId* buffer = as_buffer(operand);
  return buffer != nullptr && storage_of(module, *buffer) == *buffer &&
         room_bytes(module[*buffer]) > type_bytes(module[*buffer].type, 1);
}

// Returns true if the gaps of a value's rows hold zeros: a product that computes them made it, or a kernel in place of
// such a value, for kernels leave gaps as they are.
bool has_zero_gaps(const Module& module, const Region& region, const RegionFacts& facts,
                   const Operand& operand) {
  const ValueId* value = as_value(operand);
  if (value == nullptr || region[*value].type.pitch == 0) return false;
  const auto maker = std::ranges::find_if(
      facts.kernels, [&](const Kernel& kernel) { return contains(kernel.writes, operand); });
  if (maker == facts.kernels.end()) return false;
  if (maker->form == KernelForm::gemm)
    return rounded_extents(module, region, facts, region.ops[maker->members.front().op]).n != 0;
  return std::ranges::any_of(maker->reads, [&](const Operand& read) {
    const ValueId* before = as_value(read);
    return before != nullptr && *before != *value && region[*before].offset == region[*value].offset &&
           region[*before].type.pitch == region[*value].type.pitch &&
           type_bytes(region[*before].type, 1) == type_bytes(region[*value].type, 1) &&
           has_zero_gaps(module, region, facts, read);
  });
}

}  // namespace

Rounded rounded_extents(const Module& module, const Region& region, const RegionFacts& facts, const Op& op) {
  const ProductCall call = product_of(module, region, op);
  const OpView view{module, region, op};
  const bool ta = view.flag("ta"), tb = view.flag("tb");
  if (!is_narrow(operand_type(module, region, call.a).dtype)) return {};
  const auto uneven = [](const Extent& extent) {
    return !extent.times_batch && extent.factor % kLibraryStep != 0;
  };
  const auto next = [](bool rounds, const Extent& extent) {
    return rounds ? aligned(extent.factor, kLibraryStep) : 0;
  };
  const auto zeros = [&] { return has_zero_gaps(module, region, facts, call.a); };
  const ValueId* result = as_value(call.c);
  return {.m = next(uneven(call.m) && ta && has_room(module, call.c) && zeros(), call.m),
          .n = next(uneven(call.n) && tb && has_room(module, call.b) && result != nullptr &&
                        region[*result].type.pitch != 0,
                    call.n),
          .k = next(uneven(call.k) && !ta && !tb && has_room(module, call.b) && zeros(), call.k)};
}

std::optional<BufferId> bias_of(const Module& module, const Region& region, const Op& op,
                                const StorageRoots& root, const Operand& c) {
  const ValueId* product = as_value(c);
  if (product == nullptr || op.info != &op_add || op.when) return std::nullopt;
  const Type& type = region[*product].type;
  if (type.dtype != DType::f32 || type.shape.empty()) return std::nullopt;
  const bool in_place = arena_offset(module, region, op.results[0]) == region[*product].offset;
  for (const size_t at : {size_t{0}, size_t{1}}) {
    const BufferId* vector = as_buffer(op.operands[at]);
    if (vector == nullptr || root(op.operands[1 - at]) != c || !in_place) continue;
    const Buffer& buffer = module[*vector];
    if (buffer.kind == BufferKind::param && buffer.type == Type{DType::f32, {type.shape.back()}} &&
        buffer.offset.value_or(1) % kBiasAlignment == 0)
      return *vector;
  }
  return std::nullopt;
}

}  // namespace gacc::ir
