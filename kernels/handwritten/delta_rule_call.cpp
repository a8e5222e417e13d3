// Calls of the kernels of the gated delta rule.
#include <algorithm>

#include "ir/ops/delta_rule.h"
#include "kernels/handwritten/attention_call.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

namespace {

DeltaRuleShape delta_rule_shape(const ir::OpView& op) {
  const ir::DeltaRule s = ir::delta_rule_of(op);
  const bool by_keys =
      op.op.info == &ir::op_delta_rule_grad_queries || op.op.info == &ir::op_delta_rule_grad_keys;
  return {.length = s.length,
          .heads = s.heads,
          .key_heads = s.key_heads,
          .keys = s.keys,
          .values = s.values,
          .chunk = s.chunk,
          .by_keys = by_keys};
}

}  // namespace

// A row is a head of a sample, and a lane walks all positions.
Specialisation describe_delta_rule(const ir::OpView& op, Purpose purpose) {
  DeltaRuleShape shape = delta_rule_shape(op);
  int64_t columns = shape.lanes();
  if (purpose == Purpose::device) {
    shape.team = Team::threads(shape.channels());
    columns = ir::aligned(columns * shape.team, kWarp);  // whole warps
  }
  const int64_t work = std::clamp<int64_t>(3 * shape.length * shape.channels(), kMaskedCost, 10000);
  Specialisation made = point_items(op, purpose, {shape.heads, true}, columns, work);
  made.body.wide_index =
      made.body.wide_index || made.call.items.at(op.module.micro_batch()) >= kWideIndexElements;
  made.call.block = made.call.per_block = 128;
  made.body.shape = CompiledShape(shape);
  return made;
}

// A row is a chunk of a sample, and a point walks the chunk's positions of a head.
Specialisation describe_delta_decay(const ir::OpView& op, Purpose purpose) {
  const DeltaRuleShape shape = delta_rule_shape(op);
  const int64_t work = std::max<int64_t>(4 * std::min(shape.chunk, shape.length), kMaskedCost);
  Specialisation made = point_items(op, purpose, {shape.chunks(), true}, shape.heads, work);
  made.body.shape = CompiledShape(shape);
  return made;
}

}  // namespace gacc::kernels
