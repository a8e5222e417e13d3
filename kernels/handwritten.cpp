// The list of hand-written kernels, and the calls that most of them share.
#include "kernels/handwritten.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/cost.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

namespace {

// A line of the list. `describe` sees the op in its place; shapes are as planned. `by_tiles` (products of tiles, by
// tensor cores where there are some) comes first on a GPU, and says nothing where it does not take the op.
struct Handwritten {
  const ir::OpInfo* op;
  Specialisation (*describe)(const ir::OpView& op, Purpose purpose);
  std::optional<Specialisation> (*by_tiles)(const ir::OpView& op, const GpuTarget& gpu) = nullptr;
};

constexpr Handwritten kHandwritten[] = {
    {&ir::op_attention, describe_attention, describe_attention_mma},
    {&ir::op_attention_dropout, describe_attention, describe_attention_mma},
    {&ir::op_attention_grad, describe_attention, describe_attention_mma},
    {&ir::op_attention_dropout_grad, describe_attention, describe_attention_mma},
    {&ir::op_delta_rule, describe_delta_rule},
    {&ir::op_delta_rule_grad_written, describe_delta_rule},
    {&ir::op_delta_rule_grad_queries, describe_delta_rule},
    {&ir::op_delta_rule_grad_keys, describe_delta_rule},
    {&ir::op_delta_rule_grad_decay, describe_delta_decay},
    {&ir::op_documents, describe_documents},
    {&ir::op_documents_spans, describe_document_spans},
    {&ir::op_documents_lengths, describe_documents},
    {&ir::op_cache_put, describe_cache_put},
    {&ir::op_cache_scores, describe_cache_scores},
    {&ir::op_cache_read, describe_cache_read},
    {&ir::op_rope, describe_rope},
    {&ir::op_max_pool2d, describe_pool},
    {&ir::op_max_pool2d_grad, describe_pool},
    {&ir::op_avg_pool2d, describe_pool},
    {&ir::op_avg_pool2d_grad, describe_pool},
    {&ir::op_conv2d, describe_conv, describe_conv_product},
    {&ir::op_conv2d_grad, describe_conv, describe_conv_product},
    {&ir::op_conv2d_weight_grad, describe_conv, describe_conv_product},
    {&ir::op_batch_matmul, describe_batch_product},
    {&ir::op_permute, describe_permute},
    {&ir::op_concat, describe_concat},
    {&ir::op_slice, describe_slice},
    {&ir::op_dequantize, describe_dequantize},
    {&ir::op_embedding, describe_embedding},
    {&ir::op_embedding_grad, describe_embedding_gradient},
    {&ir::op_embedding_grad_acc, describe_embedding_gradient},
};

}  // namespace

int64_t largest_divisor(int64_t n, int64_t most) {
  int64_t best = 1;
  for (int64_t d = 2; d <= most; ++d) best = n % d == 0 ? d : best;
  return best;
}

Specialisation thread_items(const ir::OpView& op, Extent items, int64_t work) {
  Specialisation made;
  made.call.extents = {items};
  made.call.items = items;
  made.call.tile = std::max<int64_t>(1, kTaskOperations / std::max<int64_t>(work, 1));
  made.call.block = made.call.per_block = kBlockThreads;
  made.body.op = op.op.info;
  made.body.cost = 10;
  made.body.wide_index = ir::most_elements(op) >= kWideIndexElements;
  return made;
}

Specialisation point_items(const ir::OpView& op, Purpose purpose, Extent rows, int64_t columns,
                           int64_t cost) {
  constexpr int64_t kLeast = 4, kMost = 1 << 20;  // far above what a task should take
  Specialisation made = thread_items(op, rows, columns * std::clamp(cost, kLeast, kMost));
  made.call.extents.push_back({columns, false});
  made.body.cost = static_cast<int>(std::min(cost, kMost));
  if (purpose == Purpose::device) made.call.items.factor *= columns;
  return made;
}

Specialisation block_items(const ir::OpView& op, Extent items, int64_t work, int64_t threads) {
  Specialisation made = thread_items(op, items, work);
  made.call.block = threads;
  made.call.per_block = 1;
  return made;
}

Specialisation describe_handwritten(const ir::OpView& op, Purpose purpose, const GpuTarget& gpu) {
  const auto* found = std::ranges::find(kHandwritten, op.op.info, &Handwritten::op);
  if (found == std::end(kHandwritten)) throw Unfit(fmt::format("`{}` has no kernel", op.op.info->name));
  if (purpose == Purpose::device && found->by_tiles != nullptr) {
    if (std::optional<Specialisation> made = found->by_tiles(op, gpu)) return std::move(*made);
  }
  return found->describe(op, purpose);
}

}  // namespace gacc::kernels
