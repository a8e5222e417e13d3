// Layers of images [C,H,W]: convolution and pooling.

#include "frontend/layers.h"
#include "ir/ops/channels.h"

namespace gacc::frontend {

namespace {

using Pair = std::vector<int64_t>;  // along H, along W

bool same_padding(const Values& keys) { return std::holds_alternative<std::string>(*keys["padding"].value); }
int64_t dilation(const Values& keys, size_t axis) {
  return keys.lists("dilation") ? keys.integers("dilation")[axis] : 1;
}

// Returns the padding before and after, along H and W: [top, left, bottom, right]. "same" keeps the size at a stride of
// 1; an odd rest goes to the end, as in PyTorch.
Pair padding_of(const Values& keys) {
  if (!same_padding(keys)) {
    const Pair padding = keys.integers("padding");
    return {padding[0], padding[1], padding[0], padding[1]};
  }
  Pair padding(4);
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t all = dilation(keys, axis) * (keys.integers("kernel")[axis] - 1);
    padding[axis] = all / 2;
    padding[axis + 2] = all - all / 2;
  }
  return padding;
}

// A window with this reach and padding must have a place in the image.
void need_place(LayerContext& l) {
  l.need_image();
  const ir::Shape shape = l.shape();
  for (size_t axis = 0; axis < 2 && !same_padding(l.keys); ++axis) {
    const int64_t reach = dilation(l.keys, axis) * (l.keys.integers("kernel")[axis] - 1) + 1;
    const int64_t padding = l.keys.integers("padding")[axis];
    if (reach > shape[axis + 2] + 2 * padding)
      l.refuse(Kind::shape_mismatch, l.keys.at("kernel"),
               "the kernel of layer `{}` reaches over {} elements, {} gives {} with padding {}", l.spec.name,
               reach, l.input.label, l.shape_text(), padding);
  }
}

// y = conv(x, weight) + bias; then the activation. weight [out, in/groups, kh, kw], bias [out]
Layer lower_conv(LayerContext& l) {
  need_place(l);
  const int64_t in = l.shape()[1], out = l.keys.integer("channels"), groups = l.keys.integer("groups");
  l.need_groups(in, groups);
  const Pair kernel = l.keys.integers("kernel");
  const int64_t taps = kernel[0] * kernel[1];
  const Fan fan{in / groups * taps, out * taps};
  const auto spread = Parameters::Standard::spread;
  const ir::BufferId weight =
      l.parameter("weight", {out, in / groups, kernel[0], kernel[1]}, spread, fan, "channels");
  std::optional<ir::BufferId> bias;
  if (l.keys.flag("bias")) bias = l.parameter("bias", {out}, spread, fan, "channels");
  const bool active = l.keys.has("activation");
  ir::ValueId y = l.b.make("conv2d", bias || active ? l.path + ".conv" : l.path, {l.x(), weight},
                           l.attrs_of("conv2d", {{"padding", padding_of(l.keys)}}));
  if (bias) {
    const ir::Shape shape = l.b.type(y).shape;
    y = l.b.make("add", active ? l.path + ".pre" : l.path,
                 {y, ir::per_channel(l.b, l.path + ".bias.wide", *bias, shape)});
  }
  if (active) y = l.activate(y);
  return {{y}, weight};
}

Layer lower_pool(LayerContext& l) {
  need_place(l);
  const std::string_view op = l.spec.type->schema.name;
  const Pair stride = l.keys.integers(l.keys.has("stride") ? "stride" : "kernel");
  return {
      {l.b.make(op, l.path, {l.x()}, l.attrs_of(op, {{"stride", stride}, {"padding", padding_of(l.keys)}}))}};
}

// The mean of every channel: [C,H,W] -> [C]
Layer lower_global_pool(LayerContext& l) {
  l.need_image();
  const ir::Shape shape = l.shape();
  const int64_t size = shape[2] * shape[3];
  const ir::ValueId flat =
      l.b.make("reshape", l.path + ".flat", {l.x()}, {{"shape", ir::Shape{shape[0], shape[1], size}}});
  const ir::ValueId sum = l.b.make("row_sum", l.path + ".sum", {flat});
  const ir::ValueId mean = l.b.make("mul", l.path + ".mean", {sum, 1.0 / static_cast<double>(size)});
  return {{l.b.make("reshape", l.path, {mean}, {{"shape", ir::Shape{shape[0], shape[1]}}})}};
}

void check_conv(const Values& keys, Diag& diag) {
  if (same_padding(keys) && keys.integers("stride") != Pair{1, 1}) {
    diag.error(Kind::conflict, keys.at("stride"),
               "`padding` = \"same\" goes with a stride of 1; with another one write the padding out");
  }
  const int64_t channels = keys.integer("channels"), groups = keys.integer("groups");
  if (channels % groups != 0)
    diag.error(Kind::out_of_range, keys.at("groups"), "{} channels do not divide into {} groups", channels,
               groups);
}

void check_pool(const Values& keys, Diag& diag) {
  const Pair padding = keys.integers("padding"), kernel = keys.integers("kernel");
  for (size_t axis = 0; axis < kernel.size(); ++axis) {
    if (2 * padding[axis] <= kernel[axis]) continue;
    diag.error(Kind::out_of_range, keys.at("padding"), "`padding` must be at most half of `kernel`: {} of {}",
               padding[axis], kernel[axis]);
    return;
  }
}

constexpr Range padding_range = between(0, 32767);
const std::vector<Key> pool_keys = {kernel_key,
                                    {"stride", Form::pair, no_default, "default: the kernel", window_extent},
                                    {"padding", Form::pair, 0, "zeros on each side", padding_range}};

}  // namespace

const LayerType layers::conv2d{
    .schema = {.name = "conv2d",
               .says = "A convolution; weight [channels, in / groups, height, width], bias [channels].",
               .keys = {{"channels", Form::integer, required, "channels of the output", extent},
                        kernel_key,
                        {"stride", Form::pair, 1, "between two places of the kernel", window_extent},
                        Key{"padding", Form::pair, 0,
                            "zeros on each side; \"same\": as many as keep the size", padding_range}
                            .or_one_of({"same"}),
                        {"dilation", Form::pair, 1, "between two elements of the kernel", window_extent},
                        {"groups", Form::integer, 1, "divides the channels of input and output", extent},
                        bias_key,
                        activation_key,
                        slope_key},
               .example = "channels = 8\nkernel = 3\npadding = \"same\""},
    .weight = true,
    .bias = true,
    .check = check_conv,
    .lower = lower_conv,
};

const LayerType layers::max_pool2d{
    .schema = {.name = "max_pool2d",
               .says = "The largest element under the kernel; what is added around an image is no element.",
               .keys = pool_keys,
               .example = "kernel = 2"},
    .check = check_pool,
    .lower = lower_pool,
};

const LayerType layers::avg_pool2d{
    .schema = {.name = "avg_pool2d",
               .says = "The mean of what is under the kernel, the zeros around an image included.",
               .keys = pool_keys,
               .example = "kernel = 2"},
    .check = check_pool,
    .lower = lower_pool,
};

const LayerType layers::global_avg_pool2d{
    .schema = {.name = "global_avg_pool2d", .says = "The mean of each channel."},
    .lower = lower_global_pool,
};

}  // namespace gacc::frontend
