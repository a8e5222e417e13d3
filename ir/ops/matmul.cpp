// Matrix products. Each operand is the matrix [product of its leading extents, last extent]; ta and tb
// transpose it. The result has A's leading extents (with ta: A's last one) and n.
#include "ir/ops/common.h"
#include "ir/product.h"

namespace gacc::ir {

namespace {

std::string extent_text(const Extent& extent) {
  if (!extent.times_batch) return fmt::to_string(extent.factor);
  return extent.factor == 1 ? "B" : fmt::format("B*{}", extent.factor);
}

// The shape of op(a) @ op(b), where a and b are the operands first and first + 1.
Shape product_shape(const OpView& op, size_t first) {
  const Type a = op.operand(first), b = op.operand(first + 1);
  expect_float(op, first);
  const std::initializer_list<size_t> both = {first, first + 1};
  if (a.dtype != b.dtype) refuse(op, Kind::type_mismatch, both, "the factors have one type");
  if (a.shape.empty() || b.shape.empty()) refuse(op, Kind::shape_mismatch, both, "scalars have no matrix");
  const bool ta = op.flag("ta"), tb = op.flag("tb");
  Matrix left = matrix(a.shape), right = matrix(b.shape);
  if (ta) std::swap(left.rows, left.columns);
  if (tb) std::swap(right.rows, right.columns);
  if (left.columns != right.rows)
    refuse(op, Kind::shape_mismatch, both, "the inner extents are {} and {}", extent_text(left.columns),
           extent_text(right.rows));
  if (right.columns.times_batch || (ta && left.rows.times_batch))
    refuse(op, Kind::shape_mismatch, both, "the batch extent can only be the first of the result");
  Shape shape = a.shape;
  if (ta) shape = {a.shape.back()};
  if (!ta) shape.pop_back();
  shape.push_back(right.columns.factor);
  return shape;
}

// One factor's gradient, under the factor's own shape.
void add_product(GradBuilder& g, size_t i, const Operand& a, const Operand& b, bool ta, bool tb) {
  const Shape wanted = g.b.type(g.operand(i)).shape;
  Operand product = g.b.make("matmul", g.d_name(i), {a, b}, {{"ta", ta}, {"tb", tb}});
  if (g.b.type(product).shape != wanted)
    product = g.b.make("reshape", g.d_name(i) + ".shaped", {product}, {{"shape", wanted}});
  g.add(i, product);
}

//              C = A B       C = A B^T     C = A^T B     C = A^T B^T
//   d_a        dC B^T        dC B          B dC^T        B^T dC^T
//   d_b        A^T dC        dC^T A        A dC          dC^T A^T
void gradient(GradBuilder& g) {
  const bool ta = g.view().flag("ta"), tb = g.view().flag("tb");
  const Operand a = g.operand(0), b = g.operand(1), d = *g.d_result();
  if (g.wanted(0)) {
    if (ta)
      add_product(g, 0, b, d, tb, true);
    else
      add_product(g, 0, d, b, false, !tb);
  }
  if (g.wanted(1)) {
    if (tb)
      add_product(g, 1, d, a, true, ta);
    else
      add_product(g, 1, a, d, !ta, false);
  }
}

// result += op(a) @ op(b); the evaluator clears a fresh result, and a buffer holds what it held.
void multiply(EvalView& view, size_t first) {
  const bool ta = view.op.flag("ta"), tb = view.op.flag("tb");
  const Tensor &a = view.operand(first), &b = view.operand(first + 1);
  const int64_t a_columns = column_count(a), b_columns = column_count(b);
  const int64_t m = ta ? a_columns : row_count(a), k = ta ? row_count(a) : a_columns,
                n = tb ? row_count(b) : b_columns;
  std::vector<double>& c = view.result().data;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        const double left = a.data[ta ? p * a_columns + i : i * a_columns + p];
        const double right = b.data[tb ? j * b_columns + p : p * b_columns + j];
        sum += left * right;
      }
      c[i * n + j] += sum;
    }
  }
}

// 2 m n k operations: elements of A times n, twice.
Cost product_cost(const OpView& op, size_t first) {
  const int64_t batch = op.module.micro_batch();
  const Type a = op.operand(first), b = op.operand(first + 1);
  const int64_t n = op.flag("tb") ? elements(b.shape, batch) / b.shape.back() : b.shape.back();
  const int64_t result =
      op.op.results.empty() ? 2 * type_bytes(op.operand(0), batch) : type_bytes(op.result(), batch);
  return {.flops = 2 * elements(a.shape, batch) * n,
          .bytes = type_bytes(a, batch) + type_bytes(b, batch) + result};
}

}  // namespace

extern const OpInfo op_matmul{
    .name = "matmul",
    .summary =
        "op(A) @ op(B), each the matrix [leading extents, last extent], transposed with ta, tb. Sums in f32; "
        "the result has the factors' type, with f32 it stays f32",
    .operands = 2,
    .attrs = {{"f32", false}, {"ta", false}, {"tb", false}},
    .infer = [](const OpView& op) -> Types {
      return {{op.flag("f32") ? DType::f32 : op.operand(0).dtype, product_shape(op, 0)}};
    },
    .lowering = Lowering::gemm,
    .gradient = gradient,
    .reference = [](EvalView& view) { multiply(view, 0); },
    .cost = [](const OpView& op) { return product_cost(op, 0); },
    .saves = Saves::operands,
    .precision = Precision::half,
    .recompute = Recompute::costly,
};

extern const OpInfo op_matmul_acc{
    .name = "matmul.acc",
    .summary = "buffer += op(A) @ op(B), added in f32; operands: buffer (f32), A, B",
    .operands = 3,
    .writes = operand_bits({0}),
    .attrs = {{"ta", false}, {"tb", false}},
    .infer = [](const OpView& op) -> Types {
      const Shape shape = product_shape(op, 1);
      expect_write(op, 0);
      expect_dtype(op, 0, DType::f32);
      if (op.operand(0).shape != shape)
        refuse(op, Kind::shape_mismatch, {0}, "the product is {}", shape_text(shape));
      return {};
    },
    .lowering = Lowering::gemm,
    .reference = [](EvalView& view) { multiply(view, 1); },
    .cost = [](const OpView& op) { return product_cost(op, 1); },
    .precision = Precision::half,
    .accumulates = true,
};

}  // namespace gacc::ir
