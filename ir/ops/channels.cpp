#include "ir/ops/channels.h"

namespace gacc::ir {

int64_t channel_elements(const Shape& shape) { return elements(Shape(shape.begin() + 2, shape.end()), 1); }

void expect_channels(const OpView& op, size_t i) {
  const Shape shape = op.operand(i).shape;
  if (as_number(op.op.operands[i]) != nullptr || !is_float(op.operand(i).dtype) || shape.size() < 2 ||
      shape[1] == kBatch)
    refuse(op, Kind::shape_mismatch, {i}, "it takes channels, [B,C,..]");
}

void expect_per_channel(const OpView& op, size_t first, size_t last) {
  const Shape wanted{op.operand(0).shape[1]};
  for (size_t i = first; i <= last; ++i)
    if (op.operand(i).shape != wanted || !is_float(op.operand(i).dtype))
      refuse(op, Kind::shape_mismatch, {0, i}, "it must have the shape {}", shape_text(wanted));
}

Operand per_channel(Builder& b, const std::string& name, const Operand& values, const Shape& shape) {
  Shape wide(shape.size() - 1, 1);
  wide[0] = shape[1];
  return b.reshaped(name, values, wide);
}

Operand flat_channels(Builder& b, const std::string& name, Operand x) {
  const Shape shape = b.type(x).shape;
  if (shape.size() <= 3) return x;
  return b.make("reshape", name, {x}, {{"shape", Shape{shape[0], shape[1], channel_elements(shape)}}});
}

Operand channel_sum(Builder& b, const std::string& name, Operand flat, Operand* rows) {
  const Shape shape = b.type(flat).shape;
  if (shape.size() == 3) {
    const Operand sums = b.make("row_sum", name + ".row", {flat});
    flat = b.make("reshape", name + ".rows", {sums}, {{"shape", Shape{shape[0], shape[1]}}});
  }
  if (rows != nullptr) *rows = flat;
  return b.make("column_sum", name, {flat});
}

}  // namespace gacc::ir
