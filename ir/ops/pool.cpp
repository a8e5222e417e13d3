// Pooling over windows of images [B,C,H,W]. The gradient of a maximum goes to the first largest element of
// each window (to the last NaN, as PyTorch), which is found again from x: nothing but x need be kept.
#include <cmath>
#include <limits>

#include "ir/ops/window.h"

namespace gacc::ir {

namespace {

const std::vector<AttrSpec> kPoolAttrs = {{"kernel", std::vector<int64_t>{2, 2}},
                                          {"stride", std::vector<int64_t>{2, 2}},
                                          {"padding", std::vector<int64_t>{0, 0, 0, 0}}};

// A padded window must meet the image, or a maximum over nothing would be taken.
std::optional<Shape> pooled(const OpView& op, size_t images, Diag& diag) {
  if (!expect_images(op, images, diag)) return std::nullopt;
  const std::optional<Window2d> window = expect_window(op, diag);
  if (!window) return std::nullopt;
  for (int axis = 0; axis < 2; ++axis) {
    if (std::max(window->before[axis], window->after[axis]) * 2 <= window->kernel[axis]) continue;
    return wrong(op, diag, Kind::shape_mismatch, "the padding is at most half of the kernel");
  }
  const Shape& shape = op.operand(images).shape;
  return window_shape(op, shape, shape[1], *window, diag);
}

Types infer_pool(const OpView& op, Diag& diag) {
  std::optional<Shape> shape = pooled(op, 0, diag);
  if (!shape) return std::nullopt;
  return std::vector<Type>{{op.operand(0).dtype, std::move(*shape)}};
}

Types infer_max_gradient(const OpView& op, Diag& diag) {
  const std::optional<Shape> shape = pooled(op, 0, diag);
  if (!shape || !expect_images(op, 1, diag)) return std::nullopt;
  if (op.operand(1).shape != *shape) {
    return wrong(op, diag, Kind::shape_mismatch,
                 fmt::format("{}, {}; the pooled images are {}", describe(op, 0), describe(op, 1),
                             shape_text(*shape)));
  }
  return std::vector<Type>{{op.operand(1).dtype, op.operand(0).shape}};
}

// Calls f(place, first row, first column, plane) for every window of every plane.
template <class F>
void windows(const Shape& from, const Shape& to, const Window2d& w, F&& f) {
  for (int64_t plane = 0; plane < from[0] * from[1]; ++plane) {
    for (int64_t y = 0; y < to[2]; ++y) {
      for (int64_t x = 0; x < to[3]; ++x)
        f(static_cast<size_t>((plane * to[2] + y) * to[3] + x), y * w.stride[0] - w.before[0],
          x * w.stride[1] - w.before[1], plane);
    }
  }
}

// Calls f(element) for every element of the window that lies in the image, in order.
template <class F>
void inside(const Shape& from, const Window2d& w, int64_t plane, int64_t top, int64_t left, F&& f) {
  for (int64_t y = std::max<int64_t>(top, 0); y < std::min(top + w.kernel[0], from[2]); ++y) {
    for (int64_t x = std::max<int64_t>(left, 0); x < std::min(left + w.kernel[1], from[3]); ++x)
      f(static_cast<size_t>((plane * from[2] + y) * from[3] + x));
  }
}

size_t largest(const Tensor& x, const Window2d& w, int64_t plane, int64_t top, int64_t left) {
  double most = -std::numeric_limits<double>::infinity();
  std::optional<size_t> at;
  inside(x.shape, w, plane, top, left, [&](size_t i) {
    if (!at || x.data[i] > most || std::isnan(x.data[i])) at = i, most = x.data[i];
  });
  return *at;
}

void max_reference(EvalView& view) {
  const Tensor& x = view.operand(0);
  const Window2d w = window_of(view.op);
  windows(x.shape, view.result().shape, w, [&](size_t place, int64_t top, int64_t left, int64_t plane) {
    view.result().data[place] = x.data[largest(x, w, plane, top, left)];
  });
}

void max_gradient_reference(EvalView& view) {
  const Tensor &x = view.operand(0), &dy = view.operand(1);
  const Window2d w = window_of(view.op);
  windows(x.shape, dy.shape, w, [&](size_t place, int64_t top, int64_t left, int64_t plane) {
    view.result().data[largest(x, w, plane, top, left)] += dy.data[place];
  });
}

// Each place looks at its window once.
Cost pool_cost(const OpView& op) {
  const int64_t batch = op.module.micro_batch();
  const Window2d w = window_of(op);
  const Type& last = op.op.operands.size() == 2 ? op.operand(1) : op.result();
  Cost cost{.flops = elements(last.shape, batch) * w.kernel[0] * w.kernel[1],
            .bytes = type_bytes(op.result(), batch)};
  for (size_t i = 0; i < op.op.operands.size(); ++i) cost.bytes += type_bytes(op.operand(i), batch);
  return cost;
}

}  // namespace

extern const OpInfo op_max_pool2d{
    .name = "max_pool2d",
    .summary =
        "the largest element of every window of images [B,C,H,W]; NaN stays NaN. "
        "kernel and stride along H and W; padding: top, left, bottom, right, never the largest",
    .attrs = kPoolAttrs,
    .infer = infer_pool,
    .lowering = Lowering::special,
    // d_x: each dy to the first largest element of its window
    .gradient =
        [](GradBuilder& g) {
          g.add(0, g.b.make("max_pool2d.grad", g.d_name(0), {g.operand(0), *g.d_result()}, g.op().attrs));
        },
    .reference = max_reference,
    .cost = pool_cost,
    .saves = Saves::operands,
    .precision = Precision::follow,
    .user = true,
};

extern const OpInfo op_max_pool2d_grad{
    .name = "max_pool2d.grad",
    .summary =
        "the gradient of max_pool2d: each dy added to the first largest element (or last NaN) of its "
        "window; operands: x, dy",
    .operands = 2,
    .attrs = kPoolAttrs,
    .infer = infer_max_gradient,
    .lowering = Lowering::special,
    .reference = max_gradient_reference,
    .cost = pool_cost,
    .precision = Precision::follow,
    .differentiable = false,
};

}  // namespace gacc::ir
