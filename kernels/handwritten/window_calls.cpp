// Calls of kernels over windows of images.
#include "kernels/handwritten/calls.h"

#include <algorithm>

#include "ir/ops/image_window.h"

namespace gacc::kernels {

bool WindowShape::tiles() const {
  constexpr int64_t kMostTileSide = 4;  // of a window: a row of it is held as so many vectors
  for (int axis = 0; axis < 2; ++axis) {
    if (kernel[axis] != stride[axis] || kernel[axis] > kMostTileSide || before[axis] != 0) return false;
    if (to[axis] * stride[axis] > from[axis]) return false;
  }
  return true;
}

WindowShape window_shape(const ir::OpView& op, const ir::Shape& images, const ir::Shape& places) {
  const ir::Window2d window = ir::window_of(op);
  WindowShape shape{};
  for (int axis = 0; axis < 2; ++axis) {
    shape.from[axis] = images[static_cast<size_t>(axis) + 2];
    shape.to[axis] = places[static_cast<size_t>(axis) + 2];
    shape.kernel[axis] = window.kernel[axis];
    shape.stride[axis] = window.stride[axis];
    shape.dilation[axis] = window.dilation[axis];
    shape.before[axis] = window.before[axis];
  }
  return shape;
}

// Forward: a point is a place; gradient: an element of the images. On the host the windows of max_pool2d that
// are tiles are read as rows of vectors, and their gradient's points are places as well. Where windows overlap a row of
// that gradient is a plane: each window is searched once, and not by each of its elements. In f32 alone: its sums grow
// in the result.
Specialisation describe_pool(const ir::OpView& op, Purpose purpose) {
  const bool gradient = op.op.info->gradient_of != nullptr;
  const ir::OpInfo* forward = gradient ? op.op.info->gradient_of : op.op.info;
  const ir::Shape& result = op.result().shape;
  const ir::Shape other = op.operand(op.op.operands.size() - 1).shape;
  const WindowShape window = gradient ? window_shape(op, result, other) : window_shape(op, other, result);
  int64_t walk = 0;
  if (purpose == Purpose::host && forward == &ir::op_max_pool2d) {
    if (window.tiles())
      walk = PoolShape::kByWindow;
    else if (gradient && op.result().dtype == ir::DType::f32)
      walk = PoolShape::kByPlane;
  }
  const ir::Shape& walked = gradient && walk == PoolShape::kByWindow ? other : result;
  const bool planes = walk == PoolShape::kByPlane;
  int64_t cost = 6 * window.kernel[0] * window.kernel[1];
  for (int axis = 0; planes && axis < 2; ++axis) cost *= window.to[axis];
  for (int axis = 0; gradient && walk == 0 && axis < 2; ++axis)
    cost *= ceil_divide(window.kernel[axis], window.stride[axis]);
  const Extent rows =
      planes ? extent_of({walked[0], walked[1]}) : extent_of({walked[0], walked[1], walked[2]});
  Specialisation made =
      point_items(op, purpose, rows, planes ? 1 : walked[3], std::min<int64_t>(cost, 10000));
  made.body.shape = CompiledShape(PoolShape{window, walk});
  return made;
}

}  // namespace gacc::kernels
