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

// Each factor's gradient is a product, too, made by the same op and under the factor's own shape.
//              C = A B       C = A B^T     C = A^T B     C = A^T B^T
//   d_a        dC B^T        dC B          B dC^T        B^T dC^T
//   d_b        A^T dC        dC^T A        A dC          dC^T A^T
void product_gradient(GradBuilder& g) {
  const bool ta = g.view().flag("ta"), tb = g.view().flag("tb");
  const Operand a = g.operand(0), b = g.operand(1), d = *g.d_result();
  const auto add = [&](size_t i, const Operand& left, const Operand& right, bool turn_left, bool turn_right) {
    const Operand product =
        g.b.make(g.op().info->name, g.d_name(i), {left, right}, {{"ta", turn_left}, {"tb", turn_right}});
    g.add(i, g.b.reshaped(g.d_name(i) + ".shaped", product, g.b.type(g.operand(i)).shape));
  };
  if (g.wanted(0) && ta) add(0, b, d, tb, true);
  if (g.wanted(0) && !ta) add(0, d, b, false, !tb);
  if (g.wanted(1) && tb) add(1, d, a, true, ta);
  if (g.wanted(1) && !tb) add(1, a, d, !ta, false);
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
  const Shape b = op.operand(first + 1).shape;
  const int64_t n = op.flag("tb") ? elements(b, batch) / b.back() : b.back();
  return {.flops = 2 * elements(op.operand(first).shape, batch) * n, .bytes = moved_bytes(op)};
}

// Extents of a product of matrices that lie behind leading extents, which both factors have.
struct BatchProduct {
  int64_t m, n, k;
};

BatchProduct batch_product(const OpView& op) {
  const Shape a = op.operand(0).shape, b = op.operand(1).shape;
  const size_t lead = a.size() < 3 ? 0 : a.size() - 2;
  if (lead == 0 || b.size() != a.size() || !std::equal(a.begin(), a.end() - 2, b.begin()))
    refuse(op, Kind::shape_mismatch, {0, 1}, "the factors are matrices behind the same leading extents");
  const bool ta = op.flag("ta"), tb = op.flag("tb");
  const BatchProduct out{a[lead + (ta ? 1 : 0)], b[lead + (tb ? 0 : 1)], a[lead + (ta ? 0 : 1)]};
  const int64_t inner = b[lead + (tb ? 1 : 0)];
  if (inner != out.k)
    refuse(op, Kind::shape_mismatch, {0, 1}, "the inner extents are {} and {}", out.k, inner);
  return out;
}

Types infer_batch(const OpView& op) {
  expect_float(op, 0);
  const Type a = op.operand(0);
  if (a.dtype != op.operand(1).dtype) refuse(op, Kind::type_mismatch, {0, 1}, "the factors have one type");
  const BatchProduct product = batch_product(op);
  Shape shape = a.shape;
  shape[shape.size() - 2] = product.m;
  shape.back() = product.n;
  return {{a.dtype, std::move(shape)}};
}

void batch_reference(EvalView& view) {
  const auto [m, n, k] = batch_product(view.op);
  const bool ta = view.op.flag("ta"), tb = view.op.flag("tb");
  const std::vector<double>&a = view.operand(0).data, &b = view.operand(1).data;
  std::vector<double>& c = view.result().data;
  for (size_t i = 0; i < c.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i), column = at % n, row = at / n % m, matrix = at / n / m;
    for (int64_t p = 0; p < k; ++p)
      c[i] += a[matrix * m * k + (ta ? p * m + row : row * k + p)] *
              b[matrix * k * n + (tb ? column * k + p : p * n + column)];
  }
}

}  // namespace

extern const OpInfo op_batch_matmul{
    .name = "batch_matmul",
    .summary =
        "op(A) @ op(B) for every matrix of A [.., M, K] and of B [.., K, N], whose leading extents are the "
        "same; transposed with ta, tb. Sums in f32, in the order of K",
    .operands = 2,
    .attrs = {{"ta", false}, {"tb", false}},
    .infer = infer_batch,
    .gradient = product_gradient,
    .reference = batch_reference,
    .cost = [](const OpView& op) -> Cost {
      return {.flops = 2 * elements(op.result().shape, op.module.micro_batch()) * batch_product(op).k,
              .bytes = moved_bytes(op)};
    },
    .saves = Saves::operands,
    .precision = Precision::half,
    .recompute = Recompute::costly,
};

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
    .gradient = product_gradient,
    .lowering = Lowering::gemm,
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
