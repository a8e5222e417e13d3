#include "kernels/handwritten/attention_call.h"

#include <algorithm>

#include "ir/ops/heads.h"
#include "kernels/gemm.h"
#include "kernels/handwritten/calls.h"
#include "kernels/machine.h"

namespace gacc::kernels {

namespace {

constexpr int64_t kMostMmaChannels = 128;
constexpr int64_t kMostMmaLength = (int64_t{1} << 30) - 256;  // positions are 32 bits, and run past the end

}  // namespace

int64_t Team::threads(int64_t channels) {
  int64_t team = 1;
  while (team < kWarp && share(channels, team) > (team == 1 ? kMostWithoutTeam : kMostChannels)) team *= 2;
  return team;
}

double AttentionShape::fetched(bool gradient) const {
  // A product fetches 2 channels bytes of a tile's position for all rows of a warp; two of the gradient's fetch
  // those of a row as well, for all positions of a tile.
  const double products = gradient ? 7 : 2, own = own_bytes(gradient) > 0 ? 2 : 0;
  return 2 * channels * (products / warp_rows + own / tile);
}

namespace {

static_assert(kAttentionBlock == ir::kSpanBlock);

AttentionShape attention_shape(const ir::OpView& op) {
  const bool gradient = op.op.info->gradient_of != nullptr;
  const int64_t own = gradient ? 4 : 1;  // operands without dropout and documents
  const bool dropout = ir::find_attr(op.op, "p") != nullptr;
  const int64_t plain = own + (dropout ? 4 : 0), operands = std::ssize(op.op.operands);
  const ir::Heads of = ir::heads_of(op);
  const int64_t length = op.operand(0).shape[1];
  return {.heads = of.heads,
          .kv_heads = of.kv_heads,
          .length = length,
          .channels = of.channels,
          .block = std::min(kAttentionBlock, length),
          .causal = op.flag("causal"),
          .window = op.integer("window"),
          .words = dropout ? own : 0,
          .documents = operands > plain ? plain : 0,
          .operands = operands,
          .p = dropout ? op.real("p") : 0,
          .scale = ir::score_scale(op),
          .softcap = op.real("softcap"),
          .parts = gradient ? 2 : 1};
}

Specialisation specialisation_of(const ir::OpView& op, Purpose purpose, const AttentionShape& shape) {
  // A position meets up to T others, or a window of them, in 2 to 4 products of D terms.
  const int64_t met = shape.window > 0 ? shape.window : shape.length;
  const int64_t work = std::clamp<int64_t>(met * shape.channels / 4, kMaskedCost, 10000);
  // A thread for every member of a position's team, and whole warps for a row.
  int64_t columns = shape.block;
  if (shape.team > 0) columns = ir::aligned(shape.block * shape.team, kWarp);
  Specialisation made =
      point_items(op, purpose, {shape.kv_heads * shape.blocks() * shape.rows(), true}, columns, work);
  auto& [call, body, constants] = made;
  body.wide_index = body.wide_index || call.items.at(op.module.micro_batch()) >= kWideIndexElements;
  body.shape = CompiledShape(shape);
  if (shape.words != 0) call.extents.push_back({op.integer("stream"), false});
  call.block = call.per_block = 128;
  return made;
}

}  // namespace

Specialisation describe_attention(const ir::OpView& op, Purpose purpose) {
  AttentionShape shape = attention_shape(op);
  if (purpose == Purpose::device) shape.team = Team::threads(shape.channels);
  Specialisation made = specialisation_of(op, purpose, shape);
  made.body.resident = 2;
  return made;
}

std::optional<Specialisation> describe_attention_mma(const ir::OpView& op, const GpuTarget& gpu) {
  AttentionShape shape = attention_shape(op);
  if (!has_tensor_cores(op.operand(0).dtype, gpu)) return std::nullopt;
  if (shape.channels % 16 != 0 || shape.channels > kMostMmaChannels || shape.length > kMostMmaLength)
    return std::nullopt;
  shape.modern = gpu.async_copies;
  shape.block = kAttentionBlock;
  // Two stages of tiles fit 48 KiB, and a thread's sums of a tile fit its registers.
  shape.tile = shape.channels <= 64 && shape.words == 0 ? 64 : 32;
  if (shape.parts > 1 && shape.channels > 64) shape.tile = 16;
  if (shape.parts > 1 && shape.channels > 96) shape.parts = 3;
  if (gpu.async_copies && shape.channels <= 64 && shape.words == 0) {
    shape.warp_rows = 32;
    if (shape.parts > 1) shape.tile = 32;
  }
  while (shape.tile > 16 && shape.tile / 2 >= shape.length) shape.tile /= 2;
  // Another order takes registers. Those of sm_75 copy through registers, and have none left; and of the gradients only
  // plain ones have.
  const bool plain = shape.group() == 1 && shape.channels <= 64 && shape.window == 0 &&
                     shape.documents == 0 && shape.words == 0 && shape.softcap == 0;
  if (gpu.async_copies && (shape.parts == 1 || plain)) {
    // Tensors of halves that pass their blocks by: keys and values, and in the gradient also the queries and d_out of
    // all heads that share these. They leave room in the second-level cache for the rest.
    const int64_t tensors = 2 * (shape.parts > 1 ? 1 + shape.group() : 1);
    const auto bytes = static_cast<double>(2 * tensors * shape.channels * shape.length);
    const int64_t all = shape.kv_heads * op.module.micro_batch();
    const auto fit = std::clamp<int64_t>(static_cast<int64_t>(machine(gpu).l2_bytes / 3 / bytes), 1, all);
    shape.together = ceil_divide(all, ceil_divide(all, fit));  // as many groups, about equal
  }
  Specialisation made = specialisation_of(op, Purpose::device, shape);
  made.call.items = made.call.extents[0];
  made.call.per_block = 1;
  made.call.block = shape.threads();
  made.body.by_tiles = true;
  made.body.shared = shape.shared_bytes(shape.parts > 1);
  return made;
}

}  // namespace gacc::kernels
