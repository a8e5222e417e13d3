#include "ir/liveness.h"

#include <algorithm>
#include <map>

#include "ir/region_facts.h"

namespace gacc::ir {

std::vector<LiveRange> live_ranges(const Module& module, const Region& region,
                                   const std::vector<Kernel>& kernels, const std::vector<int>& times) {
  const int64_t batch = module.most_samples(region);
  std::vector<LiveRange> ranges;
  std::vector<int> range_of(region.values.size(), -1);  // of a value that owns bytes: its index in `ranges`
  const Facts known = facts(module, region);
  const StorageRoots& roots = known->root;
  const auto own = [&](ValueId value, int kernel) {
    range_of[index(value)] = static_cast<int>(ranges.size());
    ranges.push_back({value, kernel, kernel, type_bytes(region[value].type, batch)});
  };
  const auto use = [&](const Operand& operand, int kernel) {
    const ValueId* value = as_value(roots(operand));
    if (value == nullptr || range_of[index(*value)] < 0) return;
    LiveRange& range = ranges[range_of[index(*value)]];
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
    kernels[k].each_operand([&](const Operand& operand) {
      const BufferId* buffer = as_buffer(operand);
      if (buffer == nullptr || module[*buffer].role != BufferRole::slot) return;
      const auto [at, fresh] = known.emplace(*buffer, ranges.size());
      if (fresh) ranges.push_back({*buffer, time, time, type_bytes(module[*buffer].type, 1)});
      ranges[at->second].last = std::max(ranges[at->second].last, time);
    });
  }
  return ranges;
}

}  // namespace gacc::ir
