// Pooling over windows of images [B,C,H,W]. The gradient of a maximum goes to the first largest element of
// each window (to the last NaN, as PyTorch), which is found again from x: nothing but x need be kept.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/ops/image_window.h"

namespace gacc::ir {

namespace {

const std::vector<AttrSpec> kPoolAttrs = {{"kernel", std::vector<int64_t>{2, 2}},
                                          {"stride", std::vector<int64_t>{2, 2}},
                                          {"padding", std::vector<int64_t>{0, 0, 0, 0}}};

// The shape of operand 0, pooled. A padded window must meet the image, or a maximum over nothing would be taken.
Shape pooled(const OpView& op) {
  expect_images(op, 0);
  const Window2d window = expect_window(op);
  for (int axis = 0; axis < 2; ++axis)
    if (std::max(window.before[axis], window.after[axis]) * 2 > window.kernel[axis])
      refuse(op, Kind::shape_mismatch, "the padding is at most half of the kernel");
  const Shape shape = op.operand(0).shape;
  return window_shape(op, shape, shape[1], window);
}

Types infer_pool(const OpView& op) { return {{op.operand(0).dtype, pooled(op)}}; }

Types infer_max_gradient(const OpView& op) {
  const Shape shape = pooled(op);
  expect_images(op, 1);
  if (op.operand(1).shape != shape)
    refuse(op, Kind::shape_mismatch, {0, 1}, "the pooled images are {}", shape_text(shape));
  return {{common_dtype(op, 0), op.operand(0).shape}};
}

// Operand dy; `size` is the height and width of the images, which do not follow from it.
Types infer_mean_gradient(const OpView& op) {
  expect_images(op, 0);
  const Type dy = op.operand(0);
  const std::vector<int64_t>& size = op.integers("size");
  if (size.size() != 2) refuse(op, Kind::invalid_ir, "`size` is the height and width of the images");
  Shape images = {dy.shape[0], dy.shape[1], size[0], size[1]};
  if (!fits(images, op.module.micro_batch()))
    refuse(op, Kind::invalid_ir, "`size` is {}, which no images have", shape_text(size));
  const Shape places = window_shape(op, images, images[1], expect_window(op));
  if (places != dy.shape)
    refuse(op, Kind::shape_mismatch, {0}, "the pooled images are {}", shape_text(places));
  return {{dy.dtype, std::move(images)}};
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
  for (int64_t y = std::max<int64_t>(top, 0); y < std::min(top + w.kernel[0], from[2]); ++y)
    for (int64_t x = std::max<int64_t>(left, 0); x < std::min(left + w.kernel[1], from[3]); ++x)
      f(static_cast<size_t>((plane * from[2] + y) * from[3] + x));
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

// The padding counts, as zeros.
double share(const Window2d& w) { return 1.0 / static_cast<double>(w.kernel[0] * w.kernel[1]); }

void mean_reference(EvalView& view) {
  const Tensor& x = view.operand(0);
  const Window2d w = window_of(view.op);
  windows(x.shape, view.result().shape, w, [&](size_t place, int64_t top, int64_t left, int64_t plane) {
    inside(x.shape, w, plane, top, left,
           [&](size_t i) { view.result().data[place] += x.data[i] * share(w); });
  });
}

void mean_gradient_reference(EvalView& view) {
  const Tensor& dy = view.operand(0);
  const Window2d w = window_of(view.op);
  const Shape images = view.result().shape;
  windows(images, dy.shape, w, [&](size_t place, int64_t top, int64_t left, int64_t plane) {
    inside(images, w, plane, top, left,
           [&](size_t i) { view.result().data[i] += dy.data[place] * share(w); });
  });
}

// Each place looks at its window once.
Cost pool_cost(const OpView& op) {
  const Window2d w = window_of(op);
  const bool gradient = op.op.info->gradient_of != nullptr;
  const Type places = gradient ? op.operand(op.op.operands.size() - 1) : op.result();
  return {.flops = elements(places.shape, op.module.micro_batch()) * w.kernel[0] * w.kernel[1],
          .bytes = moved_bytes(op)};
}

}  // namespace

extern const OpInfo op_max_pool2d{
    .name = "max_pool2d",
    .summary =
        "the largest element of every window of images [B,C,H,W]; NaN stays NaN. kernel and stride along H "
        "and W; padding: top, left, bottom, right, never the largest",
    .attrs = kPoolAttrs,
    .infer = infer_pool,
    // d_x: each dy to the first largest element of its window
    .gradient =
        [](GradBuilder& g) {
          g.add(0, g.b.make("max_pool2d.grad", g.d_name(0), {g.operand(0), *g.d_result()}, g.op().attrs));
        },
    .reference = max_reference,
    .cost = pool_cost,
    .saves = Saves::operands,
};

extern const OpInfo op_max_pool2d_grad{
    .name = "max_pool2d.grad",
    .summary =
        "the gradient of max_pool2d: each dy added to the first largest element (or last NaN) of its window; "
        "operands: x, dy",
    .operands = 2,
    .attrs = kPoolAttrs,
    .infer = infer_max_gradient,
    .reference = max_gradient_reference,
    .cost = pool_cost,
    .gradient_of = &op_max_pool2d,
};

extern const OpInfo op_avg_pool2d{
    .name = "avg_pool2d",
    .summary =
        "the mean of every window of images [B,C,H,W]; padding counts, as zeros. kernel and stride along H "
        "and W; padding: top, left, bottom, right",
    .attrs = kPoolAttrs,
    .infer = infer_pool,
    // d_x: each dy, divided by the elements of a window, to all elements of its window
    .gradient =
        [](GradBuilder& g) {
          const Shape images = g.b.type(g.operand(0)).shape;
          Attrs attrs = g.op().attrs;
          attrs["size"] = std::vector<int64_t>{images[2], images[3]};
          g.add(0, g.b.make("avg_pool2d.grad", g.d_name(0), {*g.d_result()}, std::move(attrs)));
        },
    .reference = mean_reference,
    .cost = pool_cost,
};

extern const OpInfo op_avg_pool2d_grad{
    .name = "avg_pool2d.grad",
    .summary =
        "the gradient of avg_pool2d: each dy shared by the elements of its window; operand: dy; size: height "
        "and width of the images",
    .attrs = {kPoolAttrs[0], kPoolAttrs[1], kPoolAttrs[2], {"size", std::vector<int64_t>{1, 1}}},
    .infer = infer_mean_gradient,
    .reference = mean_gradient_reference,
    .cost = pool_cost,
    .gradient_of = &op_avg_pool2d,
};

}  // namespace gacc::ir
