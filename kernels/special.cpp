// The registry: one line for each op that is a kernel of its own.
#include "kernels/special.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/special/calls.h"

namespace gacc::kernels {

namespace {

// One line of the list. `describe` sees the op in its place; shapes are as planned. `by_products` (of tiles, by
// tensor cores where there are some) comes first on a GPU, and says nothing where it does not take the op.
struct Special {
  std::string_view op;
  Instance (*describe)(const ir::OpView& op, Purpose purpose);
  std::optional<Instance> (*by_products)(const ir::OpView& op, const GpuTarget& gpu) = nullptr;
};

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

}  // namespace

int64_t largest_divisor(int64_t n, int64_t most) {
  int64_t best = 1;
  for (int64_t d = 2; d <= most; ++d) best = n % d == 0 ? d : best;
  return best;
}

Extent extent_of(const ir::Shape& shape) { return {ir::elements(shape, 1), ir::has_batch(shape)}; }

Instance thread_items(const ir::OpView& op, Extent items, int64_t work) {
  Instance made;
  made.call.extents = {items};
  made.call.items = items;
  made.call.tile = std::max<int64_t>(1, 65536 / std::max<int64_t>(work, 1));
  made.call.block = made.call.per_block = 256;
  made.body.special = op.op.info->name;
  made.body.cost = 10;
  made.body.wide_index = largest(op) >= (int64_t{1} << 31) - (1 << 20);
  return made;
}

Instance point_items(const ir::OpView& op, Purpose purpose, Extent rows, int64_t columns, int cost) {
  Instance made = thread_items(op, rows, columns * std::max(cost, 4));
  made.call.extents.push_back({columns, false});
  made.body.cost = cost;
  if (purpose == Purpose::device) made.call.items.factor *= columns;
  return made;
}

Instance block_items(const ir::OpView& op, Extent items, int64_t work, int64_t threads) {
  Instance made = thread_items(op, items, work);
  made.call.block = threads;
  made.call.per_block = 1;
  return made;
}

Instance describe_special(const ir::OpView& op, Purpose purpose, const GpuTarget& gpu) {
  const auto* found = std::ranges::find(kSpecials, op.op.info->name, &Special::op);
  if (found == std::end(kSpecials)) throw Unfit(fmt::format("`{}` has no kernel", op.op.info->name));
  if (purpose == Purpose::device && found->by_products != nullptr) {
    if (std::optional<Instance> made = found->by_products(op, gpu)) return std::move(*made);
  }
  return found->describe(op, purpose);
}

}  // namespace gacc::kernels
