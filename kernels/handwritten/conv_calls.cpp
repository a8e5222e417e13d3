// Calls of convolutions. The host takes a library. A GPU computes a matrix product, or, where a group has few channels,
// has a thread for a few channels of one pixel, or a block for a few elements of the weight's gradient.
#include <algorithm>

#include "ir/ops/image_window.h"
#include "kernels/gemm.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

namespace {

constexpr int64_t kChannelSums = 8, kTapSums = 9;  // sums that a thread holds
constexpr int64_t kThreads = 128;                  // of a block; each holds many registers
// Least extents of a product: with fewer rows, or a smaller extent without pixels, the smallest tile is mostly empty.
constexpr int64_t kLeastRows = 16, kLeastRowsOfTensorCores = 8, kLeastOthers = 16;
// A weight's gradient of so few tiles, or by multiply-adds of such small ones, is made faster by many threads that
// share a sum.
constexpr int64_t kLeastBlocksOfSums = 66, kLeastTileOfSums = 32;
// The most rows and columns of a kernel: each has a bit of a word of 64, which says if its taps are inside. Two more
// bits are taken.
constexpr int64_t kMostKernel = 62;
constexpr int64_t kResidentThreads = 512;  // of a multiprocessor, so that a thread may have 128 registers
constexpr int64_t kMostPixels = int64_t{1} << 30;  // of all samples: they are counted in 32 bits

}  // namespace

ConvKind conv_kind(const ir::OpInfo& op) {
  if (&op == &ir::op_conv2d_weight_grad) return ConvKind::weight;
  return &op == &ir::op_conv2d_grad ? ConvKind::images : ConvKind::forward;
}

ConvShape conv_shape(const ir::OpView& op) {
  const ConvKind kind = conv_kind(*op.op.info);
  const ir::Shape images = kind == ConvKind::forward  ? op.operand(0).shape
                           : kind == ConvKind::weight ? op.operand(1).shape
                                                      : op.result().shape;
  const ir::Shape places = kind == ConvKind::forward ? op.result().shape : op.operand(0).shape;
  ConvShape shape{.window = window_shape(op, images, places), .groups = op.integer("groups")};
  shape.in = images[1] / shape.groups;
  shape.out = places[1] / shape.groups;
  if (kind == ConvKind::weight) shape.part = ir::conv_part(op);
  return shape;
}

ConvProduct ConvProduct::of(const ConvShape& shape, ConvKind kind) {
  const WindowShape& w = shape.window;
  const int64_t taps = shape.taps(), places = shape.places(), pixels = shape.pixels();
  // Kernels of one tap that meet every pixel: the images are the matrix.
  bool plain = true;
  for (int axis = 0; axis < 2; ++axis)
    plain = plain && w.kernel[axis] == 1 && w.stride[axis] == 1 && w.before[axis] == 0 &&
            w.from[axis] == w.to[axis];
  const int64_t run = plain ? places : 1;
  switch (kind) {
    case ConvKind::forward:
      return {shape.out, shape.in * taps, places, shape.in * taps, run, true, false};
    case ConvKind::images:
      return {shape.in, shape.out * taps, pixels, taps == 1 ? shape.in : 1, run, taps != 1, false};
    default:
      return {shape.out, shape.in * taps, places, places, run, true, true};
  }
}

std::optional<Specialisation> describe_conv_product(const ir::OpView& op, const GpuTarget& gpu) {
  const ConvKind kind = conv_kind(*op.op.info);
  ConvShape shape = conv_shape(op);
  const ConvProduct product = ConvProduct::of(shape, kind);
  const Extent samples = extent_of({op.operand(0).shape[0]});
  const int64_t all_samples = samples.at(op.module.micro_batch());
  const bool weight = kind == ConvKind::weight;
  const bool mma = has_tensor_cores(op.operand(0).dtype, gpu);
  // The choice of a tile depends on the micro-batch.
  if (ir::keeps_bits(op.module.settings)) return std::nullopt;
  if (product.rows < (mma ? kLeastRowsOfTensorCores : kLeastRows) || product.others < kLeastOthers)
    return std::nullopt;
  if (shape.window.kernel[0] + shape.window.kernel[1] > kMostKernel) return std::nullopt;
  if (all_samples * std::max(shape.pixels(), shape.places()) > kMostPixels || product.others > kMostPixels)
    return std::nullopt;
  const int64_t parts = weight ? op.integer("parts") : 1;
  const int64_t columns = weight ? product.others : all_samples * product.pixels;
  shape.product = choose_implicit(product.rows, columns, shape.groups * parts, mma, product.copied());
  shape.modern = gpu.async_copies ? 1 : 0;
  const GemmTile& tile = implicit_tile(shape.product);
  const int64_t down = shape.groups * ceil_divide(product.rows, tile.m);
  Extent items;
  if (weight) {
    items = {parts * down * ceil_divide(columns, tile.n), false};
    if (items.factor < kLeastBlocksOfSums || (!mma && tile.m < kLeastTileOfSums)) return std::nullopt;
  } else {
    // An item is a pixel of a row of tiles. A block has as many as leave a block for each tile of a full
    // micro-batch; of others a block may have two.
    items = {samples.factor * product.pixels * down, samples.times_batch};
    const int64_t tiles = down * ceil_divide(columns, tile.n), all = columns * down;
    shape.per_block = tiles == 1 ? all : ceil_divide(all, tiles - 1) - 1;
  }
  Specialisation made = block_items(op, items, 1, tile.threads());
  made.call.per_block = shape.per_block;
  made.call.extents.push_back(samples);
  made.body.shared = tile_shared_bytes(tile, gpu);
  made.body.resident = kResidentThreads / tile.threads();
  made.body.by_tiles = true;
  made.body.shape = CompiledShape(shape);
  return made;
}

Specialisation describe_conv(const ir::OpView& op, Purpose purpose) {
  if (purpose == Purpose::host) return {};  // a library call
  const ConvKind kind = conv_kind(*op.op.info);
  ConvShape shape = conv_shape(op);
  const Extent samples = extent_of({op.operand(0).shape[0]});
  Specialisation made;
  if (kind == ConvKind::weight) {
    shape.tile = largest_divisor(shape.taps(), kTapSums);
    const int64_t items =
        op.integer("parts") * shape.groups * shape.out * shape.in * (shape.taps() / shape.tile);
    made = block_items(op, {items, false}, shape.taps(), kThreads);
    made.call.extents.push_back(samples);
    made.body.shared = reduction_bytes(made.call.block, shape.tile);
  } else {
    shape.tile = largest_divisor(kind == ConvKind::forward ? shape.out : shape.in, kChannelSums);
    const ir::Shape& result = op.result().shape;
    const int64_t items = samples.factor * result[1] / shape.tile * result[2] * result[3];
    made = thread_items(op, {items, samples.times_batch}, shape.taps());
    made.call.block = made.call.per_block = kThreads;
  }
  made.body.shape = CompiledShape(shape);
  return made;
}

}  // namespace gacc::kernels
