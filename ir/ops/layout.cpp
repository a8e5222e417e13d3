// Elements in another order: permuted axes, tensors side by side, and a part of one. Axes are those of a
// sample: the batch extent, where there is one, stays in front and is not counted.
#include <algorithm>
#include <numeric>

#include "ir/ops/common.h"

namespace gacc::ir {

namespace {

size_t first_axis(const Shape& shape) { return has_batch(shape) ? 1 : 0; }
size_t rank(const Shape& shape) { return shape.size() - first_axis(shape); }

Types infer_permute(const OpView& op) {
  const Type from = op.operand(0);
  const auto& axes = op.integers("axes");
  std::vector<int64_t> sorted = axes, all(rank(from.shape));
  std::ranges::sort(sorted);
  std::iota(all.begin(), all.end(), 0);
  if (sorted != all || axes.empty())
    refuse(op, Kind::shape_mismatch, {0}, "axes must name each of its {} axes once", all.size());
  // Kernels count steps within a vector with 32 bits.
  constexpr int64_t kMostElements = int64_t{1} << 27;
  if (elements(from.shape, 1) > kMostElements)
    refuse(op, Kind::out_of_range, {0}, "permute takes at most {} elements a sample", kMostElements);
  Shape shape = from.shape;
  const size_t first = first_axis(shape);
  for (size_t i = 0; i < axes.size(); ++i)
    shape[first + i] = from.shape[first + static_cast<size_t>(axes[i])];
  return {{from.dtype, std::move(shape)}};
}

// d_x = dy with the axes back in their places
void permute_gradient(GradBuilder& g) {
  const auto& axes = g.view().integers("axes");
  std::vector<int64_t> back(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) back[axes[i]] = static_cast<int64_t>(i);
  g.add(0, g.b.make("permute", g.d_name(0), {*g.d_result()}, {{"axes", back}}));
}

void permute_reference(EvalView& view) {
  const Tensor& x = view.operand(0);
  Tensor& y = view.result();
  const auto& axes = view.op.integers("axes");
  const size_t first = first_axis(view.op.operand(0).shape), all = x.shape.size();
  // Steps in x for one step along each axis of y.
  std::vector<int64_t> x_strides(all, 1), strides(all);
  for (size_t i = all; i-- > 1;) x_strides[i - 1] = x_strides[i] * x.shape[i];
  for (size_t i = 0; i < all; ++i)
    strides[i] = i < first ? x_strides[i] : x_strides[first + static_cast<size_t>(axes[i - first])];
  std::vector<int64_t> at(all, 0);
  for (double& value : y.data) {
    value = x.data[std::inner_product(at.begin(), at.end(), strides.begin(), int64_t{0})];
    for (size_t i = all; i-- > 0;) {
      if (++at[i] < y.shape[i]) break;
      at[i] = 0;
    }
  }
}

// The axis attribute as an index of the shape.
size_t expect_axis(const OpView& op) {
  const Shape shape = op.operand(0).shape;
  const int64_t axis = op.integer("axis");
  if (axis >= 0 && axis < static_cast<int64_t>(rank(shape)))
    return first_axis(shape) + static_cast<size_t>(axis);
  refuse(op, Kind::out_of_range, {0}, "it has no axis {}", axis);
}

Types infer_concat(const OpView& op) {
  const size_t axis = expect_axis(op);
  const DType dtype = common_dtype(op, 0);
  const Type first = op.operand(0);
  Shape shape = first.shape;
  for (size_t i = 1; i < op.op.operands.size(); ++i) {
    const Type other = op.operand(i);
    Shape same = other.shape;
    if (same.size() == shape.size()) same[axis] = first.shape[axis];
    if (same != first.shape)
      refuse(op, Kind::shape_mismatch, {0, i}, "all but axis {} must agree", op.integer("axis"));
    shape[axis] += other.shape[axis];
  }
  return {{dtype, std::move(shape)}};
}

// d_x_i = the part of dy where x_i is
void concat_gradient(GradBuilder& g) {
  const int64_t axis = g.view().integer("axis");
  int64_t from = 0;
  for (size_t i = 0; i < g.op().operands.size(); ++i) {
    const Shape shape = g.b.type(g.operand(i)).shape;
    const int64_t size = shape[first_axis(shape) + static_cast<size_t>(axis)];
    if (g.wanted(i))
      g.add(i, g.b.make("slice", g.d_name(i), {*g.d_result()},
                        {{"axis", axis}, {"from", from}, {"size", size}}));
    from += size;
  }
}

// Rows of a tensor that is cut along one axis: what lies before the axis; their length is the rest.
int64_t rows_before(const Shape& shape, size_t axis) {
  return elements(Shape(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis)), 1);
}

size_t axis_of(const OpView& op) {
  return first_axis(op.operand(0).shape) + static_cast<size_t>(op.integer("axis"));
}

void concat_reference(EvalView& view) {
  const size_t axis = axis_of(view.op);
  Tensor& y = view.result();
  const int64_t rows = rows_before(y.shape, axis);
  auto to = y.data.begin();
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < view.op.op.operands.size(); ++i) {
      const std::vector<double>& x = view.operand(i).data;
      const auto length = static_cast<std::ptrdiff_t>(x.size()) / rows;
      to = std::copy_n(x.begin() + row * length, length, to);
    }
  }
}

// d_x = dy between zeros
void slice_gradient(GradBuilder& g) {
  const OpView view = g.view();
  const size_t axis = axis_of(view);
  const Shape whole = view.operand(0).shape;
  const int64_t from = view.integer("from"), size = view.integer("size");
  std::vector<Operand> parts;
  const auto zeros = [&](int64_t count, const char* suffix) {
    Shape shape = whole;
    shape[axis] = count;
    if (count > 0) parts.emplace_back(g.b.make("broadcast", g.d_name(0) + suffix, {0.0}, {{"shape", shape}}));
  };
  zeros(from, ".before");
  parts.push_back(*g.d_result());
  zeros(whole[axis] - from - size, ".after");
  g.add(0, parts.size() == 1 ? parts.front()
                             : g.b.make("concat", g.d_name(0), parts, {{"axis", view.integer("axis")}}));
}

void slice_reference(EvalView& view) {
  const size_t axis = axis_of(view.op);
  const Tensor& x = view.operand(0);
  Tensor& y = view.result();
  const int64_t rows = rows_before(x.shape, axis), step = static_cast<int64_t>(x.data.size()) / rows;
  const int64_t length = static_cast<int64_t>(y.data.size()) / rows;
  const int64_t from = view.op.integer("from") * (step / x.shape[axis]);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(x.data.begin() + row * step + from, length, y.data.begin() + row * length);
}

// All that is stored is loaded once; nothing is computed.
Cost move_cost(const OpView& op) { return {.bytes = 2 * type_bytes(op.result(), op.module.micro_batch())}; }

}  // namespace

extern const OpInfo op_permute{
    .name = "permute",
    .summary = "axis i of a sample of the result is axis axes[i] of the operand's",
    .copies = true,
    .attrs = {{"axes", std::vector<int64_t>{}}},
    .infer = infer_permute,
    .gradient = permute_gradient,
    .reference = permute_reference,
    .cost = move_cost,
};

extern const OpInfo op_concat{
    .name = "concat",
    .summary = "the operands, two or more, one after the other along an axis of a sample",
    .operands = -2,
    .copies = true,
    .local = true,
    .attrs = {{"axis", int64_t{0}}},
    .infer = infer_concat,
    .gradient = concat_gradient,
    .reference = concat_reference,
    .cost = move_cost,
};

extern const OpInfo op_slice{
    .name = "slice",
    .summary = "elements from, .., from + size - 1 along an axis of a sample",
    .copies = true,
    .local = true,
    .attrs = {{"axis", int64_t{0}}, {"from", int64_t{0}}, {"size", int64_t{1}}},
    .infer = [](const OpView& op) -> Types {
      const size_t axis = expect_axis(op);
      Type type = op.operand(0);
      const int64_t from = op.integer("from"), size = op.integer("size"), all = type.shape[axis];
      if (from < 0 || size < 1 || from >= all || size > all - from)
        refuse(op, Kind::out_of_range, {0}, "axis {} has no elements {} to {}", op.integer("axis"), from,
               from + size - 1);
      type.shape[axis] = size;
      return {type};
    },
    .gradient = slice_gradient,
    .reference = slice_reference,
    .cost = move_cost,
};

}  // namespace gacc::ir
