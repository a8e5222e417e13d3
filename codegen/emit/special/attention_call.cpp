// How the attention kernels are called. No LLVM here.
#include "codegen/emit/special/attention_call.h"

#include <algorithm>
#include <bit>

#include "codegen/emit/special/kinds.h"

namespace gacc::codegen {

std::vector<int64_t> AttentionShape::list() const {
  return {heads, length, channels, block, causal ? 1 : 0, words, std::bit_cast<int64_t>(p), parts};
}

AttentionShape AttentionShape::of(const Body& body) {
  const std::vector<int64_t>& list = body.parameters;
  return {.heads = list[0],
          .length = list[1],
          .channels = list[2],
          .block = list[3],
          .causal = list[4] != 0,
          .words = list[5],
          .p = std::bit_cast<double>(list[6]),
          .parts = list[7]};
}

SpecialCall describe_attention(const ir::OpView& op, Purpose purpose) {
  const ir::Shape qkv = op.operand(0).shape;
  const bool gradient = op.op.info->name.ends_with(".grad");
  const int64_t own = gradient ? 4 : 1;  // operands without dropout
  const bool dropout = static_cast<int64_t>(op.op.operands.size()) > own;
  const int64_t heads = op.integer("heads"), length = qkv[1];
  const AttentionShape shape{.heads = heads,
                             .length = length,
                             .channels = qkv[2] / 3 / heads,
                             .block = std::min(kAttentionBlock, length),
                             .causal = op.flag("causal"),
                             .words = dropout ? own : 0,
                             .p = dropout ? op.real("p") : 0,
                             .parts = !gradient                    ? 1
                                      : purpose == Purpose::device ? 3
                                                                   : 2};
  // A position meets up to T others in 2 to 4 products of D terms.
  const int64_t work = std::clamp<int64_t>(length * shape.channels / 4, 200, 10000);
  SpecialCall call = point_items(op, purpose, {heads * shape.blocks() * shape.parts, true}, shape.block,
                                 static_cast<int>(work));
  call.parameters = shape.list();
  if (dropout) call.extents.push_back({op.integer("stream"), false});
  call.block = call.per_block = 128;
  return call;
}

}  // namespace gacc::codegen
