// How convolutions are called: on the host through a library, on a GPU with a thread for a few channels of
// one pixel, or a block for a few elements of the weight's gradient. No LLVM here.
#include "ir/ops/image_window.h"
#include "kernels/special/calls.h"

namespace gacc::kernels {

namespace {

// The largest divisor of `n` that is at most `most`: how many of n neighbours one thread computes.
int64_t share(int64_t n, int64_t most) {
  int64_t best = 1;
  for (int64_t d = 2; d <= most; ++d) best = n % d == 0 ? d : best;
  return best;
}

constexpr int64_t kChannelSums = 8, kTapSums = 9;  // sums that a thread holds

}  // namespace

std::vector<int64_t> ConvShape::list() const {
  std::vector<int64_t> all = window.list();
  all.insert(all.end(), {groups, in, out, tile, part});
  return all;
}

ConvShape ConvShape::of(const Body& body) {
  ConvShape shape{.window = WindowShape::of(body)};
  auto next = body.parameters.end() - 5;
  for (int64_t* value : {&shape.groups, &shape.in, &shape.out, &shape.tile, &shape.part}) *value = *next++;
  return shape;
}

SpecialCall describe_conv(const ir::OpView& op, Purpose purpose) {
  if (purpose == Purpose::host) return {.library = true};
  const std::string_view name = op.op.info->name;
  const bool forward = name == "conv2d", weight = name == "conv2d.weight_grad";
  const ir::Shape images = forward ? op.operand(0).shape : weight ? op.operand(1).shape : op.result().shape;
  const ir::Shape places = forward ? op.result().shape : op.operand(0).shape;
  ConvShape shape{.window = window_shape(op, images, places), .groups = op.integer("groups")};
  shape.in = images[1] / shape.groups;
  shape.out = places[1] / shape.groups;
  const int64_t taps = shape.window.kernel[0] * shape.window.kernel[1];
  const bool batch = images[0] == ir::kBatch;
  const int64_t samples = batch ? 1 : images[0];
  SpecialCall call;
  if (weight) {
    shape.tile = share(taps, kTapSums);
    shape.part = ir::conv_part(op);
    const int64_t items = op.integer("parts") * places[1] * shape.in * (taps / shape.tile);
    call = block_items(op, purpose, {items, false}, taps, 128);
    call.extents.push_back({samples, batch});
    call.shared = reduction_bytes(call.block, shape.tile);
  } else {
    shape.tile = share(forward ? shape.out : shape.in, kChannelSums);
    const ir::Shape& result = op.result().shape;
    const int64_t items = samples * result[1] / shape.tile * result[2] * result[3];
    call = thread_items(op, purpose, {items, batch}, taps);
    call.block = call.per_block = 128;
  }
  call.parameters = shape.list();
  return call;
}

}  // namespace gacc::kernels
