// See special.h. The registry: one line for each op that is a kernel of its own.
#include "kernels/special.h"

#include <algorithm>

#include "kernels/special/calls.h"

namespace gacc::kernels {

namespace {

constexpr Special kSpecials[] = {
    {"attention", describe_attention, describe_attention_mma},
    {"attention.dropout", describe_attention, describe_attention_mma},
    {"attention.grad", describe_attention, describe_attention_mma},
    {"attention.dropout.grad", describe_attention, describe_attention_mma},
    {"rope", describe_rope},
    {"max_pool2d", describe_pool},
    {"max_pool2d.grad", describe_pool},
    {"avg_pool2d", describe_pool},
    {"avg_pool2d.grad", describe_pool},
    {"conv2d", describe_conv, describe_conv_product},
    {"conv2d.grad", describe_conv, describe_conv_product},
    {"conv2d.weight_grad", describe_conv, describe_conv_product},
    {"permute", describe_permute},
    {"concat", describe_concat},
    {"slice", describe_slice},
    {"embedding", describe_embedding},
    {"embedding.grad", describe_embedding_gradient},
    {"embedding.grad.acc", describe_embedding_gradient},
};

// Elements of the op's largest operand or result at the full micro-batch.
int64_t largest(const ir::OpView& op) {
  const int64_t batch = op.module.micro_batch();
  int64_t most = 0;
  for (size_t i = 0; i < op.op.operands.size(); ++i)
    most = std::max(most, ir::elements(op.operand(i).shape, batch));
  for (size_t i = 0; i < op.op.results.size(); ++i)
    most = std::max(most, ir::elements(op.result(i).shape, batch));
  return most;
}

SpecialCall usual(const ir::OpView& op, Extent items, int64_t work) {
  SpecialCall call;
  call.extents = {items};
  call.items = items;
  call.tile = std::max<int64_t>(1, 65536 / std::max<int64_t>(work, 1));
  call.wide_index = largest(op) >= (int64_t{1} << 31) - (1 << 20);
  return call;
}

}  // namespace

Extent extent_of(const ir::Shape& shape) { return {ir::elements(shape, 1), ir::has_batch(shape)}; }

SpecialCall point_items(const ir::OpView& op, Purpose purpose, Extent rows, int64_t columns, int cost) {
  SpecialCall call = usual(op, rows, columns * std::max(cost, 4));
  call.extents = {rows, {columns, false}};
  call.cost = cost;
  if (purpose == Purpose::device) call.items = {rows.factor * columns, rows.times_batch};
  return call;
}

SpecialCall thread_items(const ir::OpView& op, Purpose, Extent items, int64_t work) {
  return usual(op, items, work);
}

SpecialCall block_items(const ir::OpView& op, Purpose, Extent items, int64_t work, int64_t threads) {
  SpecialCall call = usual(op, items, work);
  call.block = threads;
  call.per_block = 1;
  return call;
}

std::optional<SpecialCall> describe_special(const ir::OpView& op, Purpose purpose, const GpuTarget& gpu) {
  const auto* found = std::find_if(std::begin(kSpecials), std::end(kSpecials),
                                   [&](const Special& s) { return s.op == op.op.info->name; });
  if (found == std::end(kSpecials)) return std::nullopt;
  if (purpose == Purpose::device && found->by_products != nullptr) {
    if (std::optional<SpecialCall> call = found->by_products(op, gpu)) return call;
  }
  return found->describe(op, purpose);
}

}  // namespace gacc::kernels
