// Kernels over images where the op table's examples do not go: ties and NaN of pooling, and convolutions that
// take several tiles of columns and several blocks of channels on the host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/codegen/check.h"

namespace gacc::codegen {
namespace {

using ir::Module;

// Checks eval with inputs made by `element`.
void check(const Module& module, int64_t batch, On on, const std::function<double(std::mt19937&)>& element,
           double tolerance) {
  std::mt19937 random(5);
  Data data{ir::random_inputs(module, batch, false, random), {}};
  for (auto& [name, tensor] : data.inputs)
    for (double& x : tensor.data) x = static_cast<float>(element(random));
  Check(module, on)(batch, data, tolerance);
}

TEST(Vision, PoolingOfTiesAndNans) {
  const Module module = ir::parse_module(R"(set train.micro_batch = 3
    eval(%x : f32[B,2,9,21], %d : f32[B,2,5,11], %e : f32[B,2,4,10]) {
      %a = max_pool2d %x : f32[B,2,5,11] {kernel = [3, 3], padding = [1, 1, 1, 1]}
      %b = max_pool2d.grad %x, %d : f32[B,2,9,21] {kernel = [3, 3], padding = [1, 1, 1, 1]}
      %c = max_pool2d.grad %x, %e : f32[B,2,9,21]
      yield metric a %a, metric b %b, metric c %c
    })");
  const auto ties = [](std::mt19937& random) { return static_cast<double>(random() % 3); };
  const auto nans = [](std::mt19937& random) {
    const auto n = random() % 12;
    return n == 0 ? std::nan("") : n < 3 ? -INFINITY : static_cast<double>(n % 3);
  };
  check(module, 3, On::both, ties, 0);
  const Module forward = ir::parse_module(R"(set train.micro_batch = 3
    eval(%x : f32[B,2,9,21]) {
      %a = max_pool2d %x : f32[B,2,5,11] {kernel = [3, 3], padding = [1, 1, 1, 1]}
      yield metric a %a
    })");
  check(forward, 2, On::both, nans, 0);
}

// Windows side by side, which the host reads as runs: with rows and columns of the image that are in no
// window, with fewer places than lanes and more, with windows of one element.
TEST(Vision, PoolingOfTiles) {
  struct Case {
    const char *size, *places, *kernel;
  };
  for (const Case& c : {Case{"8,16", "4,8", "2, 2"},
                        {"9,41", "4,20", "2, 2"},
                        {"11,23", "3,11", "3, 2"},
                        {"6,31", "6,7", "1, 4"},
                        {"14,3", "3,1", "4, 3"},
                        {"3,5", "3,5", "1, 1"}}) {
    SCOPED_TRACE(c.size);
    const std::string window = fmt::format("{{kernel = [{0}], stride = [{0}]}}", c.kernel);
    const Module module = ir::parse_module(fmt::format(R"(set train.micro_batch = 3
      eval(%x : f32[B,2,{0}], %d : f32[B,2,{1}]) {{
        %a = max_pool2d %x : f32[B,2,{1}] {2}
        %b = max_pool2d.grad %x, %d : f32[B,2,{0}] {2}
        yield metric a %a, metric b %b
      }})",
                                                       c.size, c.places, window));
    const auto ties = [](std::mt19937& random) {
      const auto n = random() % 5;
      return n == 0 ? -INFINITY : n == 1 ? -0.0 : static_cast<double>(n);
    };
    check(module, 2, On::both, ties, 0);
    const Module forward = ir::parse_module(fmt::format(R"(set train.micro_batch = 3
      eval(%x : f32[B,2,{0}]) {{
        %a = max_pool2d %x : f32[B,2,{1}] {2}
        yield metric a %a
      }})",
                                                        c.size, c.places, window));
    const auto nans = [](std::mt19937& random) { return random() % 6 == 0 ? std::nan("") : -INFINITY; };
    check(forward, 3, On::both, nans, 0);
  }
}

// A gradient of 1 for every window is counted where its maximum is: the first of equals, the last NaN.
TEST(Vision, PoolingGradientGoesToTheLastNan) {
  const Module module = ir::parse_module(R"(eval(%x : f32[B,1,1,4]) {
      %d = max_pool2d %x : f32[B,1,1,1] {kernel = [1, 4], stride = [1, 4]}
      %o = equal %d, %d : i32[B,1,1,1]
      %p = cast %o : f32[B,1,1,1]
      %q = sub 1.0, %p : f32[B,1,1,1]
      %g = max_pool2d.grad %x, %q : f32[B,1,1,4] {kernel = [1, 4], stride = [1, 4]}
      yield metric g %g
    })");
  int next = 0;
  const double row[] = {1, std::nan(""), std::nan(""), 2};
  check(
      module, 1, On::both, [&](std::mt19937&) { return row[next++ % 4]; }, 0);
}

TEST(Vision, ConvolutionsLargerThanATile) {
  const Module module = ir::parse_module(R"(set train.micro_batch = 3
    eval(%x : f32[B,36,21,33], %d : f32[B,2,21,33], %w : f32[B,36,3,3], %p : f32[B,2,21,33]) {
      %a = conv2d.weight_grad %d, %x : f32[1,2,36,3,3] {kernel = [3, 3], padding = [1, 1, 1, 1]}
      %v = reshape %a : f32[2,36,3,3] {shape = [2, 36, 3, 3]}
      %y = conv2d %x, %v : f32[B,2,21,33] {kernel = [3, 3], padding = [1, 1, 1, 1]}
      %z = conv2d.grad %p, %v : f32[B,36,21,33] {kernel = [3, 3], padding = [1, 1, 1, 1], size = [21, 33]}
      yield metric a %a, metric y %y, metric z %z
    })");
  const auto small = [](std::mt19937& random) { return static_cast<double>(random() % 9) / 8 - 0.5; };
  check(module, 3, On::host, small, 2e-5);
  check(module, 1, On::host, small, 2e-5);
}

// The host makes the images' gradient by columns of dy or by columns of dx, whichever costs less.
TEST(Vision, ImageGradientsOfEveryGeometry) {
  struct Case {
    int64_t channels, outputs, groups;
    const char *size, *places, *kernel, *window;
  };
  const Case cases[] = {
      {2, 3, 1, "9, 7", "9, 7", "3, 3", "padding = [1, 1, 1, 1]"},
      {2, 3, 1, "9, 7", "7, 5", "3, 3", ""},                        // fewer places than elements
      {2, 3, 1, "5, 6", "9, 9", "1, 2", "padding = [2, 2, 2, 2]"},  // more padding than the window reaches
      {3, 2, 1, "9, 8", "7, 9", "2, 3", "padding = [1, 2, 0, 3], dilation = [3, 2]"},
      {4, 8, 4, "6, 5", "6, 5", "3, 3", "padding = [1, 1, 1, 1], groups = 4"},
      {2, 3, 1, "9, 7", "5, 4", "3, 3", "padding = [1, 1, 1, 1], stride = [2, 2]"},  // by columns of dx
      {2, 40, 1, "5, 5", "5, 5", "3, 3", "padding = [1, 1, 1, 1]"},                  // by columns of dx
      {16, 16, 1, "40, 64", "40, 64", "3, 3", "padding = [1, 1, 1, 1]"},             // several tiles
  };
  for (const Case& c : cases) {
    const int64_t depth = c.channels / c.groups;
    const std::string window =
        fmt::format("kernel = [{}]{}{}", c.kernel, *c.window == 0 ? "" : ", ", c.window);
    SCOPED_TRACE(window);
    const Module module = ir::parse_module(fmt::format(
        R"(set train.micro_batch = 20
        eval(%x : f32[B,{0},{1}], %d : f32[B,{2},{3}]) {{
          %a = conv2d.weight_grad %d, %x : f32[1,{2},{4},{5}] {{{6}}}
          %v = reshape %a : f32[{2},{4},{5}] {{shape = [{2}, {4}, {5}]}}
          %z = conv2d.grad %d, %v : f32[B,{0},{1}] {{{6}, size = [{1}]}}
          yield metric z %z
        }})",
        c.channels, c.size, c.outputs, c.places, depth, c.kernel, window));
    const auto small = [](std::mt19937& random) { return static_cast<double>(random() % 9) / 8 - 0.5; };
    for (const int64_t batch : {3, 1}) check(module, batch, On::host, small, 2e-5);
  }
}

}  // namespace
}  // namespace gacc::codegen
