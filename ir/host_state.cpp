#include "ir/host_state.h"

#include <algorithm>

namespace gacc::ir {

namespace {

const Op& op_of(const Region& region, const CallSite& call) {
  return *std::ranges::find(region.ops, call.kernel, &Op::kernel);
}

}  // namespace

bool fetches(const Region& region) {
  return std::ranges::any_of(region.ops, [](const Op& op) { return op.info == &op_host_fetch; });
}

bool passes_state(const Region& region) {
  return std::ranges::any_of(region.ops, [](const Op& op) { return op.info == &op_host_in; });
}

int32_t stream_of_state(const Region& region, const Launch& launch) {
  const CallSite& call = *calls(launch).front();
  if (as_copy(call) == nullptr) return 0;
  return op_of(region, call).info == &op_host_in ? 1 : 2;
}

bool is_on_host(const Module& module, BufferId buffer) { return module[storage_of(module, buffer)].host; }

std::optional<StateSection> section_of_ops(const Region& region) {
  if (!passes_state(region)) return std::nullopt;
  StateSection section;
  const auto first = std::ranges::find_if(region.ops, is_copy);
  const auto last = std::find_if(region.ops.rbegin(), region.ops.rend(), is_copy);
  section.flag = first->when.value_or(Operand(1.0));
  section.first = static_cast<size_t>(first - region.ops.begin());
  section.last = static_cast<size_t>(region.ops.rend() - last) - 1;
  return section;
}

std::optional<StateSection> section_of_launches(const Region& region) {
  std::optional<StateSection> section = section_of_ops(region);
  if (!section || !region.schedule) return std::nullopt;
  bool any = false;
  for (size_t i = 0; i < region.schedule->launches.size(); ++i) {
    if (as_copy(*calls(region.schedule->launches[i]).front()) == nullptr) continue;
    if (!any) section->first = i;
    section->last = i;
    any = true;
  }
  return section;
}

}  // namespace gacc::ir
