// Reductions over the last axis (row_*), over all other axes (column_sum), and over everything (total_sum).
// The `.acc` forms add to a buffer. References and kernels follow from Lowering and Combine.
#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

bool expect_number(const OpView& op, size_t i, Diag& diag) {
  return as_number(op.op.operands[i]) == nullptr ||
         refuse(op, diag, Kind::shape_mismatch, "a number cannot be reduced");
}

Types infer_rows(const OpView& op, Diag& diag) {
  if (!expect_number(op, 0, diag) || !expect_columns(op, 0, diag)) return std::nullopt;
  return std::vector<Type>{{result_dtype(op, op.operand(0).dtype), row_shape(op.operand(0).shape)}};
}

// [.., C] -> [C]; at least one axis is summed away.
std::optional<Shape> columns_of(const OpView& op, size_t i, Diag& diag) {
  if (!expect_number(op, i, diag) || !expect_columns(op, i, diag)) return std::nullopt;
  const Shape shape = op.operand(i).shape;
  if (shape.size() < 2)
    return wrong(op, diag, Kind::shape_mismatch, "{}; there is nothing to sum over", describe(op, i));
  return Shape{shape.back()};
}

bool expect_parts(const OpView& op, Diag& diag) {
  const int64_t parts = op.integer("parts");
  return (parts >= 1 && parts <= 65536) ||
         refuse(op, diag, Kind::out_of_range, "parts is {}; it must be 1 to 65536", parts);
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
          .lowering = Lowering::row_reduce,
          .combine = combine,
          .gradient = row_extreme_gradient,
          .saves = Saves::operands,
          .precision = Precision::f32};
}

}  // namespace

extern const OpInfo op_row_sum{
    .name = "row_sum",
    .summary = "sum over the last axis, which stays with extent 1",
    .infer = infer_rows,
    .lowering = Lowering::row_reduce,
    // d_x = dy, repeated
    .gradient = [](GradBuilder& g) { g.add(0, *g.d_result()); },
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
    .infer = [](const OpView& op, Diag& diag) -> Types {
      std::optional<Shape> shape = columns_of(op, 0, diag);
      if (!shape || !expect_parts(op, diag)) return std::nullopt;
      if (op.integer("parts") > 1) shape->insert(shape->begin(), op.integer("parts"));
      return std::vector<Type>{{result_dtype(op, op.operand(0).dtype), std::move(*shape)}};
    },
    .lowering = Lowering::column_reduce,
    .gradient = sum_gradient,
    .precision = Precision::f32,
};

extern const OpInfo op_column_sum_acc{
    .name = "column_sum.acc",
    .summary = "buffer [C] += sum over all axes of x [..,C] but the last; operands: buffer, x",
    .operands = 2,
    .writes = 1,
    .infer = [](const OpView& op, Diag& diag) -> Types {
      const std::optional<Shape> shape = columns_of(op, 1, diag);
      if (!shape || !expect_write(op, 0, diag) || !expect_writable(op, 1, op.operand(0).dtype, diag))
        return std::nullopt;
      if (op.operand(0).shape == *shape) return std::vector<Type>{};
      return wrong(op, diag, Kind::shape_mismatch, "{}, {}; the buffer must be {}", describe(op, 0),
                   describe(op, 1), shape_text(*shape));
    },
    .lowering = Lowering::column_reduce,
    .precision = Precision::f32,
};

extern const OpInfo op_total_sum{
    .name = "total_sum",
    .summary =
        "sum over all elements: []. With parts = P > 1 the result is [P]: x has R rows (all axes but the "
        "last; an [B] has B), R counted at the full micro-batch, and part p sums the rows p*ceil(R/P) to "
        "(p+1)*ceil(R/P)-1, as far as they exist; a part without rows is 0. So the parts do not depend on "
        "how many rows a ragged batch has",
    .attrs = {{"parts", int64_t{1}}},
    .infer = [](const OpView& op, Diag& diag) -> Types {
      if (!expect_number(op, 0, diag) || !expect_parts(op, diag)) return std::nullopt;
      const int64_t parts = op.integer("parts");
      return std::vector<Type>{{result_dtype(op, op.operand(0).dtype), parts == 1 ? Shape{} : Shape{parts}}};
    },
    .lowering = Lowering::total_reduce,
    .gradient = sum_gradient,
    .precision = Precision::f32,
};

extern const OpInfo op_total_sum_acc{
    .name = "total_sum.acc",
    .summary = "buffer [] += sum over all elements of x; operands: buffer, x; floats or i32",
    .operands = 2,
    .writes = 1,
    .infer = [](const OpView& op, Diag& diag) -> Types {
      return no_results(expect_number(op, 1, diag) && expect_write(op, 0, diag) &&
                        expect_scalar(op, 0, diag) && expect_writable(op, 1, op.operand(0).dtype, diag));
    },
    .lowering = Lowering::total_reduce,
    .precision = Precision::f32,
};

}  // namespace gacc::ir
