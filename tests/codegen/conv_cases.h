// Convolutions and both of their gradients, as modules.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/codegen/machine.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {

struct ConvCase {
  int64_t in, out, height, width, kernel[2], stride = 1, padding = 0, dilation = 1, groups = 1;
  int64_t micro_batch = 16, parts = 16;  // enough for a weight's gradient to be a product
  std::vector<int64_t> batches{3, 1};
  int64_t places(int axis) const {
    const int64_t size = axis == 0 ? height : width;
    return (size + 2 * padding - dilation * (kernel[axis] - 1) - 1) / stride + 1;
  }
  std::string text() const {
    return fmt::format(
        "{} -> {} channels of {} x {}, kernel {} x {}, stride {}, padding {}, dilation {}, groups {}", in,
        out, height, width, kernel[0], kernel[1], stride, padding, dilation, groups);
  }
};

inline ir::Module conv_module(const ConvCase& c, ir::DType dtype) {
  const auto type = ir::dtype_text(dtype);
  const std::string attrs = fmt::format(
      "kernel = [{}, {}], stride = [{}, {}], padding = [{}, {}, {}, {}], dilation = [{}, {}], groups = {}",
      c.kernel[0], c.kernel[1], c.stride, c.stride, c.padding, c.padding, c.padding, c.padding, c.dilation,
      c.dilation, c.groups);
  const std::string weight = fmt::format("{},{},{},{}", c.out, c.in / c.groups, c.kernel[0], c.kernel[1]);
  const std::string images = fmt::format("{}[B,{},{},{}]", type, c.in, c.height, c.width);
  const std::string places = fmt::format("{}[B,{},{},{}]", type, c.out, c.places(0), c.places(1));
  ir::Module module =
      ir::parse_module(fmt::format("set train.micro_batch = {}\n"
                                   "state @w : {}[{}] control\n"
                                   "eval(%x : {}, %d : {}) {{\n"
                                   "  %y = conv2d %x, @w : {} {{{}}}\n"
                                   "  %z = conv2d.grad %d, @w : {} {{{}, size = [{}, {}]}}\n"
                                   "  %a = conv2d.weight_grad %d, %x : f32[{},{}] {{{}, parts = {}}}\n"
                                   "  yield metric y %y, metric z %z, metric a %a\n"
                                   "}}\n",
                                   c.micro_batch, type, weight, images, places, places, attrs, images, attrs,
                                   c.height, c.width, c.parts, weight, attrs, c.parts));
  group_ops(module, module.eval);
  return module;
}

// A tile for each, of conv2d in f16 and in f32.
struct ConvTile {
  ConvCase c;
  const char *halves, *floats;
};
inline const std::vector<ConvTile> kConvTiles = {
    {{80, 256, 8, 8, {1, 1}, 1, 0, 1, 1, 128, 16, {3}}, "128x128", "128x128"},
    {{80, 256, 9, 9, {1, 1}, 1, 0, 1, 1, 100, 16, {3}}, "128x64", "128x128"},
    {{28, 64, 9, 9, {2, 2}, 1, 0, 1, 1, 100, 16, {3}}, "64x64", "64x64"},
    {{24, 32, 11, 11, {3, 3}, 1, 1, 1, 1, 64, 16, {3}}, "32x64", "32x32"},
    {{17, 40, 5, 5, {3, 3}, 1, 1, 1, 1, 16, 16, {3}}, "32x32", "16x16"}};

}  // namespace gacc::codegen
