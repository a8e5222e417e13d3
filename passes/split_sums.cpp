// A sum over everything is one task's work, and one over rows a few tasks', unless it is cut into parts
// first:
//
//   %s = total_sum %x : f32[]          %s.parts = total_sum %x : f32[64] {parts = 64}
//                                      %s = total_sum %s.parts : f32[]
//
// and column_sum alike. The number of parts follows from the shape at the full micro-batch, never from
// threads or the device, so the sum has the same bits everywhere; and sums of sums keep f32 accurate. The
// second half moves down to its first user, where the second halves of several sums can share a kernel. One
// that adds to a buffer has no user and moves down to the next product: small launches that follow one another
// become one (pass `merge`).
#include <algorithm>

#include "ir/builder.h"
#include "ir/kernel.h"
#include "passes/analysis/rewrite.h"
#include "passes/fuse.h"

namespace gacc::passes {

using namespace ir;

namespace {

constexpr int64_t kElementsPerPart = 4096;  // of a large total_sum, one task's share
constexpr int64_t kRowsPerPart = 128;       // of a column_sum that is cut: two waits for memory
constexpr int64_t kColumnParts = 256;       // at most: their sum is not cut again

// Returns the number of parts that pays: parts are runs of rows, none empty at the full micro-batch. 1: not split.
int64_t part_count(Lowering lowering, const Shape& shape, int64_t batch) {
  const int64_t row_count = rows(shape, batch);
  int64_t wanted = 1;
  if (lowering == Lowering::total_reduce)
    wanted = std::min({kTotalParts, row_count, elements(shape, batch) / kElementsPerPart});
  else if (row_count >= kRowsToCut)
    wanted = std::min(kColumnParts, row_count / kRowsPerPart);
  if (wanted < 2) return 1;
  return ceil_divide(row_count, ceil_divide(row_count, wanted));
}

bool is_elementwise_or_sum(const Op& op) {
  switch (op.info->lowering) {
    case Lowering::alias:
    case Lowering::pointwise:
    case Lowering::row_reduce:
    case Lowering::column_reduce:
    case Lowering::total_reduce:
      return true;
    default:
      return false;
  }
}

// Tells whether the second half of a sum may run after `next` instead of before it, and should.
bool moves_past(const Op& last, const Op& next) {
  return last.results.empty() ? is_elementwise_or_sum(next) : !next.reads(last.results.front());
}

}  // namespace

int64_t total_parts(const Shape& shape) { return part_count(Lowering::total_reduce, shape, 1); }

void split_sums(Module& module, Region& region, Diag& diag) {
  for (size_t i = 0; i < region.ops.size(); ++i) {
    const Op& op = region.ops[i];
    const Lowering lowering = op.info->lowering;
    if (lowering != Lowering::total_reduce && lowering != Lowering::column_reduce) continue;
    if (has_flag(op, "ordered")) continue;
    const bool total = lowering == Lowering::total_reduce;
    const size_t summed = op.results.empty() ? 1 : 0;  // the .acc forms name their buffer first
    // Sums over samples have already been split (passes/accumulate.cpp).
    if (keeps_bits(module.settings) && has_batch(operand_type(module, region, op.operands[summed]).shape))
      continue;
    const bool whole =
        op.results.empty() || region[op.results.front()].type.shape.size() == (total ? 0U : 1U);
    const int64_t parts =
        part_count(lowering, operand_type(module, region, op.operands[summed]).shape, module.micro_batch());
    if (!whole || parts < 2) continue;

    Builder build = Builder(module, region, diag).like(op);
    build.at = i;
    const ValueId sums =
        build.make(total ? "total_sum" : "column_sum", name_of(module, region, op) + ".parts",
                   {op.operands[summed]}, {{"parts", parts}});
    Op last = std::move(region.ops[++i]);
    last.operands[summed] = sums;
    size_t to = i;
    while (to + 1 < region.ops.size() && moves_past(last, region.ops[to + 1])) ++to;
    std::move(region.ops.begin() + static_cast<std::ptrdiff_t>(i) + 1,
              region.ops.begin() + static_cast<std::ptrdiff_t>(to) + 1,
              region.ops.begin() + static_cast<std::ptrdiff_t>(i));
    region.ops[to] = std::move(last);
    if (to > i) --i;  // another op stands at i now
  }
}

}  // namespace gacc::passes
