#include "ir/ops/image_window.h"

#include <algorithm>

namespace gacc::ir {

namespace {

constexpr int64_t kLargest = (int64_t{1} << 15) - 1;

// The attribute's list, or nothing when the op has none of that name.
const std::vector<int64_t>* numbers(const OpView& op, std::string_view name) {
  const Attr* attr = find_attr(op.op, name);
  return attr == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(attr);
}

}  // namespace

Window2d window_of(const OpView& op) {
  Window2d window;
  const auto read = [&](std::string_view name, int64_t(&into)[2], size_t first) {
    const std::vector<int64_t>* list = numbers(op, name);
    if (list == nullptr || list->size() < first + 2) return;
    for (size_t axis = 0; axis < 2; ++axis) into[axis] = (*list)[first + axis];
  };
  read("kernel", window.kernel, 0);
  read("stride", window.stride, 0);
  read("dilation", window.dilation, 0);
  read("padding", window.before, 0);
  read("padding", window.after, 2);
  return window;
}

Window2d expect_window(const OpView& op) {
  struct Rule {
    std::string_view name;
    size_t count;
    int64_t least;
  };
  for (const Rule& rule :
       {Rule{"kernel", 2, 1}, Rule{"stride", 2, 1}, Rule{"dilation", 2, 1}, Rule{"padding", 4, 0}}) {
    const std::vector<int64_t>* list = numbers(op, rule.name);
    if (list == nullptr) continue;
    const bool good = list->size() == rule.count && std::ranges::all_of(*list, [&](int64_t value) {
                        return value >= rule.least && value <= kLargest;
                      });
    if (!good)
      refuse(op, Kind::invalid_ir, "`{}` is {} numbers from {} to {}", rule.name, rule.count, rule.least,
             kLargest);
  }
  return window_of(op);
}

void expect_images(const OpView& op, size_t i) {
  if (as_number(op.op.operands[i]) != nullptr || !is_float(op.operand(i).dtype) ||
      op.operand(i).shape.size() != 4)
    refuse(op, Kind::shape_mismatch, {i}, "it takes images [B,C,H,W]");
}

Shape window_shape(const OpView& op, const Shape& images, int64_t channels, const Window2d& window) {
  Shape shape = {images[0], channels, window.places(0, images[2]), window.places(1, images[3])};
  if (shape[2] >= 1 && shape[3] >= 1) return shape;
  refuse(op, Kind::shape_mismatch, "a window of {} x {} does not fit into {}", window.reach(0),
         window.reach(1), shape_text(images));
}

}  // namespace gacc::ir
