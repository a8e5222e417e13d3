// Pass `workspaces`: where in the arena a library's matrix product may work: the largest range of bytes that
// hold nothing while it runs. They cost no memory, because the arena has them anyway for what lives at other
// times. What is free for a full micro-batch is free for a smaller one, whose values begin at the same
// places. On two streams they are also free of what a launch touches that may run beside the product, and of
// what such a product works in.
#include <algorithm>

#include "ir/liveness.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "ir/schedule/launch_order.h"
#include "passes/pass.h"
#include "passes/planner/offsets.h"

namespace gacc::passes {

namespace {

// The bytes of all buffers, by runs that no workspace fits between.
std::vector<planner::TakenBytes> buffer_runs(const ir::Module& module) {
  std::vector<planner::TakenBytes> all, runs;
  for (const ir::Buffer& buffer : module.buffers) {
    const int64_t begin = buffer.offset.value_or(0);
    all.push_back({begin, begin + ir::room_bytes(buffer)});
  }
  std::ranges::sort(all, {}, &planner::TakenBytes::begin);
  for (const planner::TakenBytes& next : all) {
    if (runs.empty() || next.begin > ir::aligned(runs.back().end, ir::kWorkspaceAlignment))
      runs.push_back(next);
    else
      runs.back().end = std::max(runs.back().end, next.end);
  }
  return runs;
}

// The region's launches stand in the order of its kernels.
void add_workspaces(const ir::Module& module, ir::Region& region) {
  const std::vector<planner::TakenBytes> buffers = buffer_runs(module);
  const ir::Facts facts = ir::facts(module, region);
  const std::vector<ir::LiveRange> ranges = ir::live_ranges(module, region, facts->kernels);
  for (ir::CallSite* call : ir::calls(*region.schedule))
    if (auto* product = std::get_if<ir::ProductCall>(&call->what)) product->workspace.reset();
  const ir::LaunchOrder order(*region.schedule);
  std::vector<ir::Touched> touched = ir::launch_touched(module, region, facts->kernels);
  for (ir::CallSite* call : ir::calls(*region.schedule)) {
    auto* product = std::get_if<ir::ProductCall>(&call->what);
    if (product == nullptr) continue;
    const auto now = static_cast<int>(facts->numbers[call->kernel]);
    std::vector<planner::TakenBytes> taken = buffers;
    for (const ir::LiveRange& range : ranges) {
      if (range.first > now || range.last < now) continue;
      const int64_t begin = region[range.value].offset.value_or(0);
      taken.push_back({begin, begin + range.bytes});
    }
    const size_t launch = order.launch_of(call->kernel).value();
    for (size_t other = 0; other < touched.size(); ++other) {
      if (!order.concurrent(launch, other)) continue;
      for (const auto* bytes : {&touched[other].reads, &touched[other].writes})
        for (const ir::Bytes& one : *bytes) taken.push_back({one.offset, one.offset + one.size});
    }
    const planner::TakenBytes found = planner::largest_free(std::move(taken), module.arena_bytes.value_or(0),
                                                            ir::kWorkspaceAlignment, ir::kMostWorkspace);
    if (found.end <= found.begin) continue;
    product->workspace = ir::Bytes{found.begin, found.end - found.begin};
    touched[launch].writes.push_back(*product->workspace);
  }
}

}  // namespace

bool workspaces(ir::Module& module, const Options&, Diag&) {
  // The update's lines are in another order than its kernels.
  for (const ir::RegionKind kind : ir::all_regions)
    if (ir::is_batched(kind) && module.region(kind).schedule) add_workspaces(module, module.region(kind));
  return true;
}

}  // namespace gacc::passes
