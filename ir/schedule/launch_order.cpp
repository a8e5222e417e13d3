#include "ir/schedule/launch_order.h"

#include <algorithm>
#include <array>
#include <functional>

namespace gacc::ir {

LaunchOrder::LaunchOrder(const Schedule& schedule) {
  for (size_t i = 0; i < schedule.launches.size(); ++i)
    for (const CallSite* call : calls(schedule.launches[i])) launches_.emplace_back(call->kernel, i);
  std::ranges::sort(launches_);
  std::array<Place, kStreams> next;  // of each stream
  for (size_t stream = 0; stream < kStreams; ++stream) next[stream].stream = stream;
  for (const Launch& launch : schedule.launches) {
    const Branch& branch = ir::branch(launch);
    Place& place = next[std::clamp<size_t>(static_cast<size_t>(branch.stream), 0, kStreams - 1)];
    for (const int32_t kernel : branch.after) {
      const std::optional<size_t> other = launch_of(kernel);
      if (other && *other < places_.size()) place.wait(places_[*other]);
    }
    places_.push_back(place);
    ++place.number;
  }
}

void LaunchOrder::Place::wait(const Place& other) {
  for (size_t each = 0; each < kStreams; ++each) ended[each] = std::max(ended[each], other.ended[each]);
  ended[other.stream] = std::max(ended[other.stream], other.number + 1);
}

std::optional<size_t> LaunchOrder::launch_of(int32_t kernel) const {
  const auto found = std::ranges::lower_bound(launches_, std::pair(kernel, size_t{0}));
  return found != launches_.end() && found->first == kernel ? std::optional(found->second) : std::nullopt;
}

bool LaunchOrder::before(size_t a, size_t b) const {
  if (a >= b) return false;
  return places_[a].stream == places_[b].stream || places_[a].number < places_[b].ended[places_[a].stream];
}

void LaunchOrder::wait(size_t a, size_t b) {
  for (size_t i = b; i < places_.size(); ++i)
    if (places_[i].stream == places_[b].stream) places_[i].wait(places_[a]);
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
  std::vector<int32_t> stream_of;
  for (Launch& launch : schedule.launches) {
    branch(launch).after.clear();
    stream_of.push_back(branch(launch).stream);
  }
  LaunchOrder order(schedule);
  std::array<bool, kStreams> none;  // whether nothing before b is on that stream
  none.fill(true);
  for (size_t b = 0; b < touched.size(); ++b) {
    Branch& branch = ir::branch(schedule.launches[b]);
    std::array<bool, kStreams> done = none;  // all of that stream that it may have to wait for
    done[branch.stream] = true;
    none[branch.stream] = false;
    for (size_t a = b; a-- > 0 && !std::ranges::all_of(done, std::identity());) {
      bool& all = done[stream_of[a]];
      if (all) continue;
      all = order.before(a, b);
      if (all || !conflict(touched[a], touched[b])) continue;
      branch.after.push_back(calls(schedule.launches[a]).back()->kernel);
      order.wait(a, b);
      all = true;
    }
  }
}

}  // namespace gacc::ir
