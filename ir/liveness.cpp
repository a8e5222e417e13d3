// Live ranges of values at kernel granularity.
#include "ir/liveness.h"

#include <algorithm>
#include <map>

#include "ir/region_facts.h"

namespace gacc::ir {

std::vector<LiveRange> live_ranges(const Module& module, const Region& region,
                                   const std::vector<Kernel>& kernels, const std::vector<int>& times) {
  const int64_t batch = module.most_samples(region);
  std::vector<LiveRange> ranges;
  std::vector<int> slot(region.values.size(), -1);  // of a value that owns bytes: its index in `ranges`
  const Facts known = facts(module, region);
  const StorageRoots& roots = known->root;
  const auto own = [&](ValueId value, int kernel) {
    slot[index(value)] = static_cast<int>(ranges.size());
    ranges.push_back({value, kernel, kernel, type_bytes(region[value].type, batch)});
  };
  const auto use = [&](const Operand& operand, int kernel) {
    const ValueId* value = as_value(roots(operand));
    if (value == nullptr || slot[index(*value)] < 0) return;
    LiveRange& range = ranges[slot[index(*value)]];
    range.last = std::max(range.last, kernel);
  };
  for (const ValueId input : region.inputs) own(input, 0);
  int last = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    const int time = times.empty() ? static_cast<int>(k) : times[k];
    last = std::max(last, time);
    for (const Operand& read : kernels[k].reads) use(read, time);
    for (const Operand& write : kernels[k].writes)
      if (const ValueId* value = as_value(write)) own(*value, time);
  }
  for (const Yield& yield : region.yields) use(yield.what, last);
  return ranges;
}

std::vector<SlotRange> slot_ranges(const Module& module, const std::vector<Kernel>& kernels,
                                   const std::vector<int>& times) {
  std::vector<SlotRange> ranges;
  std::map<BufferId, size_t> known;
  for (size_t k = 0; k < kernels.size(); ++k) {
    const int time = times.empty() ? static_cast<int>(k) : times[k];
    for (const auto* operands : {&kernels[k].reads, &kernels[k].writes})
      for (const Operand& operand : *operands) {
        const BufferId* buffer = as_buffer(operand);
        if (buffer == nullptr || module[*buffer].role != BufferRole::slot) continue;
        const auto [at, fresh] = known.emplace(*buffer, ranges.size());
        if (fresh) ranges.push_back({*buffer, time, time, type_bytes(module[*buffer].type, 1)});
        ranges[at->second].last = time;
      }
  }
  return ranges;
}

}  // namespace gacc::ir
