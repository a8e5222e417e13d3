// Windows that slide over the last two axes of images [B,C,H,W]: the geometry that convolutions and pooling
// share, read from an op's attributes kernel, stride, dilation (two numbers each: along H, along W) and
// padding (top, left, bottom, right).
#pragma once
#include "ir/ops/common.h"

namespace gacc::ir {

struct Window2d {
  int64_t kernel[2] = {1, 1}, stride[2] = {1, 1}, dilation[2] = {1, 1};
  int64_t before[2] = {0, 0}, after[2] = {0, 0};  // elements of padding
  // From the first to the last element of the window along an axis, both counted.
  int64_t reach(int axis) const { return dilation[axis] * (kernel[axis] - 1) + 1; }
  // Returns how often the window fits along an axis of this extent; below 1 it does not fit.
  int64_t places(int axis, int64_t extent) const {
    const int64_t room = extent + before[axis] + after[axis] - reach(axis);
    return room < 0 ? 0 : room / stride[axis] + 1;
  }
};

// The op's window. An attribute that the op has not keeps its default.
Window2d window_of(const OpView& op);
// The same, once its attributes have the right number of elements, each in its range (kernel, stride and
// dilation from 1, padding from 0, all below 2^15).
Window2d expect_window(const OpView& op);
// Operand i is f[B,C,H,W] (any first extent).
void expect_images(const OpView& op, size_t i);
// The shape of the window's places over images, with this many channels, once the window fits.
Shape window_shape(const OpView& op, const Shape& images, int64_t channels, const Window2d& window);

// Samples of one part of a conv2d.weight_grad: micro-batch / parts, rounded up.
int64_t conv_part(const OpView& op);

}  // namespace gacc::ir
