#include "ir/schedule/launch_order.h"

#include <algorithm>
#include <array>

namespace gacc::ir {

LaunchOrder::LaunchOrder(const Schedule& schedule) {
  for (size_t i = 0; i < schedule.launches.size(); ++i)
    for (const CallSite* call : calls(schedule.launches[i])) launches_.emplace_back(call->kernel, i);
  std::ranges::sort(launches_);
  std::array<size_t, 2> counts{};
  std::array<size_t, 2> ended{};  // of the other stream, before the next launch of this one begins
  for (const Launch& launch : schedule.launches) {
    const Branch& branch = ir::branch(launch);
    const size_t stream = branch.stream != 0 ? 1 : 0;
    if (branch.after) {
      const std::optional<size_t> other = launch_of(*branch.after);
      if (other && *other < places_.size() && places_[*other].stream != stream)
        ended[stream] = std::max(ended[stream], places_[*other].number + 1);
    }
    places_.push_back({stream, counts[stream]++, ended[stream]});
  }
}

std::optional<size_t> LaunchOrder::launch_of(int32_t kernel) const {
  const auto found = std::ranges::lower_bound(launches_, std::pair(kernel, size_t{0}));
  return found != launches_.end() && found->first == kernel ? std::optional(found->second) : std::nullopt;
}

bool LaunchOrder::before(size_t a, size_t b) const {
  if (a >= b) return false;
  return places_[a].stream == places_[b].stream || places_[a].number < places_[b].ended;
}

void LaunchOrder::wait(size_t a, size_t b) {
  for (size_t i = b; i < places_.size(); ++i)
    if (places_[i].stream == places_[b].stream)
      places_[i].ended = std::max(places_[i].ended, places_[a].number + 1);
}

std::vector<Touched> launch_touched(const Module& module, const Region& region,
                                    const std::vector<Kernel>& kernels) {
  const KernelNumbers numbers(kernels);
  std::vector<Touched> all;
  for (const Launch& launch : region.schedule->launches) {
    Touched& here = all.emplace_back();
    const auto add = [&](int32_t kernel) {
      const Touched more = touched(module, region, kernels[numbers[kernel]]);
      here.reads.insert(here.reads.end(), more.reads.begin(), more.reads.end());
      here.writes.insert(here.writes.end(), more.writes.begin(), more.writes.end());
    };
    for (const CallSite* call : calls(launch)) {
      add(call->kernel);
      const ProductCall* product = as_product(*call);
      if (product == nullptr) continue;
      if (product->then) add(product->then->kernel);
      if (product->workspace) here.writes.push_back(*product->workspace);
    }
  }
  return all;
}

void add_waits(const std::vector<Touched>& touched, Schedule& schedule) {
  for (Launch& launch : schedule.launches) branch(launch).after.reset();
  LaunchOrder order(schedule);
  for (size_t b = 0; b < touched.size(); ++b) {
    Branch& branch = ir::branch(schedule.launches[b]);
    for (size_t a = b; a-- > 0;) {
      if (ir::branch(schedule.launches[a]).stream == branch.stream) continue;
      if (order.before(a, b)) break;  // and all before it
      if (!conflict(touched[a], touched[b])) continue;
      branch.after = calls(schedule.launches[a]).back()->kernel;
      order.wait(a, b);
      break;
    }
  }
}

}  // namespace gacc::ir
