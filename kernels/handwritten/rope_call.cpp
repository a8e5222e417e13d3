// Calls of the kernel of rotary positions.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/ops/heads.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

// A point is a pair of channels of a position (GPU: some neighbours) in all its heads: they have one angle.
Specialisation describe_rope(const ir::OpView& op, Purpose purpose) {
  const ir::Heads of = ir::heads_of(op);
  const int64_t rotated = op.integer("rotated");
  RopeShape shape{.length = op.operand(0).shape[1],
                  .turned = of.heads + of.kv_heads,
                  .copied = of.kv_heads,
                  .channels = of.channels,
                  .interleaved = op.flag("interleaved"),
                  .inverse = op.flag("inverse"),
                  .positioned = op.op.operands.size() > 1,
                  .vector = 1,
                  .magnitude = op.real("magnitude"),
                  .turns = {}};
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const long double turn = ir::rope_frequency(op, i) / (2 * std::numbers::pi_v<long double>);
    shape.turns.push_back(static_cast<uint64_t>(std::ldexp(turn, 64)));  // a frequency is at most 1
  }
  if (purpose == Purpose::device) {  // accesses of 16 bytes, where these begin at multiples of them
    const int64_t elements = 16 / ir::dtype_bytes(op.operand(0).dtype);
    const int64_t widest = shape.interleaved ? elements / 2 : elements;
    while (shape.vector < widest && shape.pairs() % (2 * shape.vector) == 0 &&
           of.channels % (shape.interleaved ? 4 * shape.vector : 2 * shape.vector) == 0)
      shape.vector *= 2;
  }
  const int64_t cost = std::min(50 + 8 * of.all(), kMaskedCost - 1);
  Specialisation made = point_items(op, purpose, extent_of({op.operand(0).shape[0], shape.length}),
                                    shape.pairs() / shape.vector, cost);
  made.call.block = made.call.per_block = 32;  // there are few threads, each with much to do
  made.body.shape = CompiledShape(std::move(shape));
  return made;
}

}  // namespace gacc::kernels
