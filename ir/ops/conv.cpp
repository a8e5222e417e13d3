// Two-dimensional convolutions of images [B,C,H,W] with a weight [O,C/groups,kh,kw], and their gradients.
// The gradient of the weight comes in parts, each the sum over a fixed share of the samples: parts are
// independent, so they give a device its parallelism, and are added in order.
#include "ir/ops/image_window.h"

#include <algorithm>

namespace gacc::ir {

namespace {

const std::vector<int64_t> kOnes = {1, 1}, kNone = {0, 0, 0, 0};

std::vector<AttrSpec> attrs(std::vector<AttrSpec> more = {}) {
  std::vector<AttrSpec> all = {
      {"kernel", kOnes}, {"stride", kOnes}, {"padding", kNone}, {"dilation", kOnes}, {"groups", int64_t{1}}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The window, once the attributes and the weight's shape agree with images of this many channels.
Window2d expect_conv(const OpView& op, const Shape& weight, int64_t channels) {
  const Window2d window = expect_window(op);
  const int64_t groups = op.integer("groups");
  const bool divides = groups >= 1 && weight.size() == 4 && weight[0] % groups == 0 && channels % groups == 0;
  if (divides && weight[1] == channels / groups && weight[2] == window.kernel[0] &&
      weight[3] == window.kernel[1])
    return window;
  refuse(op, Kind::shape_mismatch,
         "a weight {} does not fit {} channels in {} groups and a kernel of {} x {}", shape_text(weight),
         channels, groups, window.kernel[0], window.kernel[1]);
}

// Operand 0 has the places of the window over such images, with this many channels.
void expect_places(const OpView& op, const Shape& images, int64_t channels, const Window2d& window) {
  const Shape places = window_shape(op, images, channels, window);
  if (op.operand(0).shape != places)
    refuse(op, Kind::shape_mismatch, {0}, "the convolved images are {}", shape_text(places));
}

void expect_factors(const OpView& op) {
  expect_images(op, 0);
  expect_images(op, 1);
  expect_dtype(op, 1, op.operand(0).dtype);
}

Types infer_forward(const OpView& op) {
  expect_factors(op);
  const Type x = op.operand(0), weight = op.operand(1);
  const Window2d window = expect_conv(op, weight.shape, x.shape[1]);
  return {{x.dtype, window_shape(op, x.shape, weight.shape[0], window)}};
}

// Operands dy, weight; the size of the images does not follow from theirs.
Types infer_images(const OpView& op) {
  expect_factors(op);
  const Type dy = op.operand(0), weight = op.operand(1);
  const std::vector<int64_t>& size = op.integers("size");
  const int64_t groups = op.integer("groups");
  if (size.size() != 2 || groups < 1)
    refuse(op, Kind::invalid_ir, "`size` is the height and width of the images");
  Shape images = {dy.shape[0], weight.shape[1] * groups, size[0], size[1]};
  expect_places(op, images, weight.shape[0], expect_conv(op, weight.shape, images[1]));
  return {{dy.dtype, std::move(images)}};
}

// Operands dy, x.
Types infer_weight(const OpView& op) {
  expect_factors(op);
  const Type dy = op.operand(0), x = op.operand(1);
  const int64_t groups = op.integer("groups"), parts = op.integer("parts");
  const Window2d window = expect_window(op);
  if (groups < 1 || x.shape[1] % groups != 0 || parts < 1 || parts > op.module.micro_batch())
    refuse(op, Kind::invalid_ir, "`groups` divides the channels, `parts` is at most the micro-batch");
  Shape weight = {dy.shape[1], x.shape[1] / groups, window.kernel[0], window.kernel[1]};
  expect_conv(op, weight, x.shape[1]);
  expect_places(op, x.shape, dy.shape[1], window);
  weight.insert(weight.begin(), parts);
  return {{DType::f32, std::move(weight)}};
}

// Calls f(element of the images, of the weight, of the places, sample) for every product of the convolution.
template <class F>
void products(const OpView& op, const Shape& images, const Shape& places, F&& f) {
  const Window2d w = window_of(op);
  const int64_t groups = op.integer("groups"), in = images[1] / groups, out = places[1] / groups;
  for (int64_t b = 0; b < places[0]; ++b) {
    for (int64_t o = 0; o < places[1]; ++o) {
      for (int64_t py = 0; py < places[2]; ++py) {
        for (int64_t px = 0; px < places[3]; ++px) {
          const int64_t place = ((b * places[1] + o) * places[2] + py) * places[3] + px;
          for (int64_t c = 0; c < in; ++c) {
            for (int64_t ky = 0; ky < w.kernel[0]; ++ky) {
              for (int64_t kx = 0; kx < w.kernel[1]; ++kx) {
                const int64_t y = py * w.stride[0] - w.before[0] + ky * w.dilation[0];
                const int64_t x = px * w.stride[1] - w.before[1] + kx * w.dilation[1];
                if (y < 0 || y >= images[2] || x < 0 || x >= images[3]) continue;
                const int64_t image = ((b * images[1] + o / out * in + c) * images[2] + y) * images[3] + x;
                const int64_t weight = ((o * in + c) * w.kernel[0] + ky) * w.kernel[1] + kx;
                f(static_cast<size_t>(image), static_cast<size_t>(weight), static_cast<size_t>(place), b);
              }
            }
          }
        }
      }
    }
  }
}

void forward_reference(EvalView& view) {
  const Tensor &x = view.operand(0), &weight = view.operand(1);
  Tensor& y = view.result();
  products(view.op, x.shape, y.shape, [&](size_t image, size_t w, size_t place, int64_t) {
    y.data[place] += x.data[image] * weight.data[w];
  });
}

void images_reference(EvalView& view) {
  const Tensor &dy = view.operand(0), &weight = view.operand(1);
  Tensor& dx = view.result();
  products(view.op, dx.shape, dy.shape, [&](size_t image, size_t w, size_t place, int64_t) {
    dx.data[image] += dy.data[place] * weight.data[w];
  });
}

void weight_reference(EvalView& view) {
  const Tensor &dy = view.operand(0), &x = view.operand(1);
  Tensor& parts = view.result();
  const int64_t chunk = conv_part(view.op);
  const size_t size = parts.data.size() / static_cast<size_t>(view.op.integer("parts"));
  products(view.op, x.shape, dy.shape, [&](size_t image, size_t w, size_t place, int64_t sample) {
    parts.data[static_cast<size_t>(sample / chunk) * size + w] += x.data[image] * dy.data[place];
  });
}

// Two operations for every product, padding counted: places times the weights that each one sees.
Cost conv_cost(const OpView& op) {
  const Window2d w = window_of(op);
  const bool forward = op.op.info == &op_conv2d;
  const Shape places = forward ? op.result().shape : op.operand(0).shape;
  const Shape images = forward                                ? op.operand(0).shape
                       : op.op.info == &op_conv2d_weight_grad ? op.operand(1).shape
                                                              : op.result().shape;
  const int64_t each = images[1] / op.integer("groups") * w.kernel[0] * w.kernel[1];
  return {.flops = 2 * elements(places, op.module.micro_batch()) * each, .bytes = moved_bytes(op)};
}

// Enough parts for a device with many cores, few enough that they take little memory.
int64_t parts_for(int64_t weights, int64_t micro_batch) {
  constexpr int64_t kMostParts = 16, kMostElements = int64_t{1} << 21;  // of all parts together
  return std::max<int64_t>(
      1, std::min({kMostParts, micro_batch, kMostElements / std::max<int64_t>(weights, 1)}));
}

// d_weight, operand 1's gradient: each product of the convolution of `x`, with `dy` at its place, back to its weight.
void add_weight_gradient(GradBuilder& g, const Operand& dy, const Operand& x, Attrs more) {
  const Shape shape = g.b.type(g.operand(1)).shape;
  const std::string name = g.d_name(1);
  const int64_t size = elements(shape, 1), micro_batch = g.b.module().micro_batch();
  const int64_t parts = keeps_bits(g.b.module().settings) ? micro_batch : parts_for(size, micro_batch);
  more["parts"] = parts;
  const Operand all = g.b.make("conv2d.weight_grad", name + ".parts", {dy, x}, std::move(more));
  const Operand rows = g.b.make("reshape", name + ".rows", {all}, {{"shape", Shape{parts, size}}});
  const Operand sum = g.b.make("column_sum", name + ".sum", {rows});
  g.add(1, g.b.make("reshape", name, {sum}, {{"shape", shape}}));
}

// With * the convolution:
//   d_x = dy *^T weight: each product of forward back to its element of x    d_weight: likewise to its weight
void gradient(GradBuilder& g) {
  const Operand x = g.operand(0), weight = g.operand(1), dy = *g.d_result();
  if (g.wanted(0)) {
    const Shape images = g.b.type(x).shape;
    Attrs more = g.op().attrs;
    more["size"] = std::vector<int64_t>{images[2], images[3]};
    g.add(0, g.b.make("conv2d.grad", g.d_name(0), {dy, weight}, std::move(more)));
  }
  if (g.wanted(1)) add_weight_gradient(g, dy, x, g.op().attrs);
}

// y = x *^T weight, a transposed convolution, is linear in both:
//   d_x = dy * weight    d_weight: that of the convolution of dy, where its result has the gradient x
void transposed_gradient(GradBuilder& g) {
  const Operand x = g.operand(0), weight = g.operand(1), dy = *g.d_result();
  Attrs window = g.op().attrs;
  window.erase("size");
  if (g.wanted(0)) g.add(0, g.b.make("conv2d", g.d_name(0), {dy, weight}, window));
  if (g.wanted(1)) add_weight_gradient(g, x, dy, std::move(window));
}

}  // namespace

int64_t conv_part(const OpView& op) { return ceil_divide(op.module.micro_batch(), op.integer("parts")); }

extern const OpInfo op_conv2d{
    .name = "conv2d",
    .summary =
        "the convolution (cross-correlation) of images x [B,C,H,W] with weight [O,C/groups,kh,kw]; padding: "
        "zeros at top, left, bottom, right. Operands: x, weight",
    .operands = 2,
    .attrs = attrs(),
    .infer = infer_forward,
    .gradient = gradient,
    .reference = forward_reference,
    .cost = conv_cost,
    .saves = Saves::operands,
    .precision = Precision::half,
    .recompute = Recompute::costly,
};

extern const OpInfo op_conv2d_grad{
    .name = "conv2d.grad",
    .summary =
        "the gradient of conv2d's images, and so a transposed convolution; operands: dy, weight; "
        "size: height and width of the images",
    .operands = 2,
    .attrs = attrs({{"size", std::vector<int64_t>{1, 1}}}),
    .infer = infer_images,
    .gradient = transposed_gradient,
    .reference = images_reference,
    .cost = conv_cost,
    .saves = Saves::operands,
    .precision = Precision::half,
    .recompute = Recompute::costly,
    .gradient_of = &op_conv2d,
};

extern const OpInfo op_conv2d_weight_grad{
    .name = "conv2d.weight_grad",
    .summary =
        "the gradient of conv2d's weight in parts, [parts, weight..] in f32: part p is the sum over samples "
        "p n to (p + 1) n with n = micro-batch / parts, rounded up. Operands: dy, x",
    .operands = 2,
    .attrs = attrs({{"parts", int64_t{1}}}),
    .infer = infer_weight,
    .reference = weight_reference,
    .cost = conv_cost,
    .precision = Precision::half,
    .recompute = Recompute::costly,
    .gradient_of = &op_conv2d,
};

}  // namespace gacc::ir
