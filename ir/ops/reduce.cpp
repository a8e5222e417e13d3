// Reductions over the last axis (row_*), over all other axes (column_sum), and over everything (total_sum).
// The `.acc` forms add to a buffer. References and kernels follow from Lowering and Combine.
#include "ir/ops/common.h"
#include "ir/parts.h"

namespace gacc::ir {

namespace {

void expect_tensor(const OpView& op, size_t i) {
  if (as_number(op.op.operands[i]) != nullptr) refuse(op, Kind::shape_mismatch, "a number cannot be reduced");
}

Types infer_rows(const OpView& op) {
  expect_tensor(op, 0);
  expect_columns(op, 0);
  return {{result_dtype(op, op.operand(0).dtype), row_shape(op.operand(0).shape)}};
}

// [.., C] -> [C]; at least one axis is summed away.
Shape columns_of(const OpView& op, size_t i) {
  expect_tensor(op, i);
  expect_columns(op, i);
  const Shape shape = op.operand(i).shape;
  if (shape.size() < 2) refuse(op, Kind::shape_mismatch, {i}, "there is nothing to sum over");
  return {shape.back()};
}

void expect_parts(const OpView& op) {
  const int64_t parts = op.integer("parts");
  if (parts < 1 || parts > kMostParts)
    refuse(op, Kind::out_of_range, "parts is {}; it must be 1 to {}", parts, kMostParts);
}

// d_x = dy, repeated; the parts exist only after autodiff.
void sum_gradient(GradBuilder& g) {
  if (g.view().integer("parts") == 1)
    g.add(0, *g.d_result());
  else
    g.b.diag().error(Kind::no_gradient, g.op().at, "`{}` with parts has no gradient", g.op().info->name);
}

// The gradient of a row maximum or minimum, shared by the elements that equal it:
//   with n = how many x equal y in the row:  d_x = x == y ? dy / n : 0
void row_extreme_gradient(GradBuilder& g) {
  const std::string name = g.d_name(0);
  const Operand hit = g.b.make("equal", name + ".hit", {g.operand(0), g.result()});
  const Operand one = g.b.make("cast", name + ".one", {hit});
  const Operand count = g.b.make("row_sum", name + ".count", {one});
  const Operand share = g.b.make("div", name + ".share", {*g.d_result(), count});
  g.add(0, g.b.make("select", name, {hit, share, 0.0}));
}

OpInfo row_extreme(std::string_view name, Combine combine, std::string_view summary) {
  return {.name = name,
          .summary = summary,
          .infer = infer_rows,
          .combine = combine,
          .gradient = row_extreme_gradient,
          .lowering = Lowering::row_reduce,
          .saves = Saves::operands,
          .precision = Precision::f32};
}

}  // namespace

extern const OpInfo op_row_sum{
    .name = "row_sum",
    .summary = "sum over the last axis, which stays with extent 1",
    .infer = infer_rows,
    // d_x = dy, repeated
    .gradient = [](GradBuilder& g) { g.add(0, *g.d_result()); },
    .lowering = Lowering::row_reduce,
    .precision = Precision::f32,
};

extern const OpInfo op_row_max = row_extreme(
    "row_max", Combine::max,
    "maximum over the last axis, which stays with extent 1; NaN if any is. Ties share the gradient");
extern const OpInfo op_row_min = row_extreme(
    "row_min", Combine::min,
    "minimum over the last axis, which stays with extent 1; NaN if any is. Ties share the gradient");

extern const OpInfo op_column_sum{
    .name = "column_sum",
    .summary =
        "sum over all axes but the last: [..,C] to [C]. With parts = P > 1 the result is [P,C]: part p sums "
        "the rows that part p of `total_sum` does",
    .attrs = {{"parts", int64_t{1}}},
    .infer = [](const OpView& op) -> Types {
      Shape shape = columns_of(op, 0);
      expect_parts(op);
      if (op.integer("parts") > 1) shape.insert(shape.begin(), op.integer("parts"));
      return {{result_dtype(op, op.operand(0).dtype), std::move(shape)}};
    },
    .gradient = sum_gradient,
    .lowering = Lowering::column_reduce,
    .precision = Precision::f32,
};

extern const OpInfo op_column_sum_acc{
    .name = "column_sum.acc",
    .summary =
        "buffer [C], of any shape, += sum over all axes of x [..,C] but the last; operands: buffer, x. "
        "ordered: the rows are added to the buffer one after the other",
    .operands = 2,
    .writes = operand_bits({0}),
    .attrs = {{"ordered", false}},
    .infer = [](const OpView& op) -> Types {
      const Shape shape = columns_of(op, 1);
      expect_write(op, 0);
      expect_writable(op, 1, op.operand(0).dtype);
      const Shape& sums = op.operand(0).shape;
      if (has_batch(sums) || elements(sums, 1) != shape.front())
        refuse(op, Kind::shape_mismatch, {0, 1}, "the buffer must be {}", shape_text(shape));
      return {};
    },
    .lowering = Lowering::column_reduce,
    .precision = Precision::f32,
    .accumulates = true,
};

extern const OpInfo op_total_sum{
    .name = "total_sum",
    .summary =
        "sum over all elements: []. With parts = P > 1 the result is [P]: x has R rows (all axes but the "
        "last; an [B] has B), R counted at the full micro-batch, and part p sums the rows p*ceil(R/P) to "
        "(p+1)*ceil(R/P)-1, as far as they exist; a part without rows is 0. So the parts do not depend on "
        "how many rows a ragged batch has",
    .attrs = {{"parts", int64_t{1}}},
    .infer = [](const OpView& op) -> Types {
      expect_tensor(op, 0);
      expect_parts(op);
      const int64_t parts = op.integer("parts");
      return {{result_dtype(op, op.operand(0).dtype), parts == 1 ? Shape{} : Shape{parts}}};
    },
    .gradient = sum_gradient,
    .lowering = Lowering::total_reduce,
    .precision = Precision::f32,
};

extern const OpInfo op_total_sum_acc{
    .name = "total_sum.acc",
    .summary =
        "buffer of one element, of any shape, += sum over all elements of x; operands: buffer, x; floats or "
        "i32. ordered: they are added to the buffer one after the other",
    .operands = 2,
    .writes = operand_bits({0}),
    .attrs = {{"ordered", false}},
    .infer = [](const OpView& op) -> Types {
      expect_tensor(op, 1);
      expect_write(op, 0);
      expect_writable(op, 1, op.operand(0).dtype);
      const Shape& sum = op.operand(0).shape;
      if (has_batch(sum) || elements(sum, 1) != 1)
        refuse(op, Kind::shape_mismatch, {0}, "the buffer must have one element");
      return {};
    },
    .lowering = Lowering::total_reduce,
    .precision = Precision::f32,
    .accumulates = true,
};

}  // namespace gacc::ir
