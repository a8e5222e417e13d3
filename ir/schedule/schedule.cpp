#include "ir/schedule/schedule.h"

#include <algorithm>

namespace gacc::ir {

namespace {

template <class CallSite>
std::vector<CallSite*> all_calls(auto& schedule) {
  std::vector<CallSite*> all;
  for (auto& launch : schedule.launches) {
    if (auto* merged = std::get_if<Merged>(&launch))
      for (auto& part : merged->parts) all.push_back(&part);
    else
      all.push_back(&std::get<ir::CallSite>(launch));
  }
  return all;
}

}  // namespace

Extent extent_of(const Shape& shape) { return {elements(shape, 1), has_batch(shape)}; }

Calls calls(const Schedule& schedule) { return all_calls<const CallSite>(schedule); }
std::vector<CallSite*> calls(Schedule& schedule) { return all_calls<CallSite>(schedule); }

Calls calls(const Launch& launch) {
  const Merged* merged = std::get_if<Merged>(&launch);
  return merged != nullptr ? parts(*merged) : Calls{&std::get<CallSite>(launch)};
}

const Branch& branch(const Launch& launch) {
  return std::visit([](const auto& one) -> const Branch& { return one.branch; }, launch);
}
Branch& branch(Launch& launch) {
  return std::visit([](auto& one) -> Branch& { return one.branch; }, launch);
}

Calls parts(const Merged& merged) {
  Calls all;
  for (const CallSite& part : merged.parts) all.push_back(&part);
  return all;
}

Levels by_level(const Schedule& schedule) {
  Levels levels;
  for (const CallSite* call : calls(schedule)) {
    if (!call->level) continue;
    const auto level = static_cast<size_t>(*call->level);
    if (levels.size() <= level) levels.resize(level + 1);
    levels[level].push_back(call);
  }
  return levels;
}

int64_t threads(const CallSite& call) {
  if (as_copy(call) != nullptr) return 0;
  const ProductCall* product = as_product(call);
  return product != nullptr ? product->block : as_kernel(call)->block;
}

int64_t shared_bytes(const CallSite& call) {
  if (as_copy(call) != nullptr) return 0;
  const ProductCall* product = as_product(call);
  return product != nullptr ? product->shared : as_kernel(call)->shared;
}

int64_t blocks(const CallSite& call, int64_t batch) {
  if (const ProductCall* product = as_product(call))
    return ceil_divide(product->m.at(batch), product->tile_m) *
           ceil_divide(product->n.at(batch), product->tile_n);
  if (as_copy(call) != nullptr) return 0;
  const KernelCall& kernel = *as_kernel(call);
  return ceil_divide(kernel.items.at(batch), kernel.per_block);
}

int64_t merged_block(const Levels& levels) {
  int64_t block = kMergedBlock;
  for (const Calls& level : levels)
    for (const CallSite* call : level) block = std::max(block, threads(*call));
  return block;
}

int64_t places(const CallSite& call, int64_t merged_block) {
  const int64_t fit = std::min(merged_block / threads(call), kPlaceBarriers);
  const int64_t shared = shared_bytes(call);
  return shared > 0 ? std::min(fit, kBlockShared / shared) : fit;
}

bool countable(const CallSite& call, int64_t batch) {
  const KernelCall* kernel = as_kernel(call);
  return blocks(call, batch) < int64_t{1} << 30 &&
         (kernel == nullptr || kernel->items.at(batch) < int64_t{1} << 31);
}

int64_t merged_blocks(const Levels& levels, int64_t merged_block, int64_t batch) {
  int64_t most = 1;
  for (const Calls& level : levels) {
    int64_t here = 0;
    for (const CallSite* call : level) here += ceil_divide(blocks(*call, batch), places(*call, merged_block));
    most = std::max(most, here);
  }
  return most;
}

}  // namespace gacc::ir
