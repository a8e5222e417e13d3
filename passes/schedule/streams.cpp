// Pass `streams`: which launches of a step that is a graph go to a second stream, beside the others. The
// gradients of parameters need what the backward pass makes on its way down, and nothing on that way needs
// them: their products and sums fill the multiprocessors that the last wave of a launch leaves idle, and the
// gaps between launches.
//
//   1. Aside go launches of kernels that write buffers alone, and of sums in parts whose parts only such kernels
//      read.
//   2. A launch waits for the latest one of the other stream that touches the same bytes, where one of them
//      writes. Bytes that are used again make waits, too.
//   3. What then has nothing to run beside comes back.
//
// Frozen weights that the step fetches from the host have a third stream. A copy begins when its bytes are free, and
// its first reader waits for it.
//
// Copies of state from the host and back (memory.host) have a stream each, beside the kernels of the update.
#include <algorithm>
#include <set>

#include "ir/host_state.h"
#include "ir/schedule/launch_order.h"
#include "passes/pass.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

std::vector<bool> fit_second_stream(const ir::Region& region, const ir::RegionFacts& facts) {
  const auto are_buffers = [](const ir::Kernel& kernel) {
    return std::ranges::all_of(kernel.writes,
                               [](const ir::Operand& written) { return ir::as_buffer(written) != nullptr; });
  };
  const ir::StorageRoots& root = facts.root;
  std::set<ir::ValueId> elsewhere;  // values that other kernels read, too
  for (const ir::Kernel& kernel : facts.kernels)
    if (kernel.form != ir::KernelForm::alias && !are_buffers(kernel))
      for (const ir::Operand& operand : kernel.reads)
        if (const ir::ValueId* value = ir::as_value(root(operand))) elsewhere.insert(*value);
  for (const ir::Yield& yield : region.yields)
    if (const ir::ValueId* value = ir::as_value(root(yield.what))) elsewhere.insert(*value);
  std::vector<bool> all;
  for (const ir::Kernel& kernel : facts.kernels) {
    const bool sums =
        kernel.form == ir::KernelForm::column_reduce || kernel.form == ir::KernelForm::total_reduce;
    all.push_back(
        kernel.form != ir::KernelForm::alias &&
        (are_buffers(kernel) || (sums && std::ranges::none_of(kernel.writes, [&](const ir::Operand& written) {
                                   const ir::ValueId* value = ir::as_value(written);
                                   return value != nullptr && elsewhere.contains(*value);
                                 }))));
  }
  return all;
}

namespace {

// Brings back what has nothing of the first stream beside it; returns whether anything was.
bool bring_back(std::vector<ir::Launch>& launches, const ir::LaunchOrder& order) {
  std::vector<size_t> alone;
  for (size_t a = 0; a < launches.size(); ++a) {
    if (ir::branch(launches[a]).stream != 1) continue;
    bool concurrent = false;
    for (size_t b = 0; b < launches.size() && !concurrent; ++b)
      concurrent = ir::branch(launches[b]).stream == 0 && order.concurrent(a, b);
    if (!concurrent) alone.push_back(a);
  }
  for (const size_t launch : alone) ir::branch(launches[launch]).stream = 0;
  return !alone.empty();
}

}  // namespace

bool streams(ir::Module& module, const Options&, Diag&) {
  if (ir::Region& update = module.update; update.schedule && ir::passes_state(update)) {
    for (ir::Launch& launch : update.schedule->launches)
      ir::branch(launch) = {ir::stream_of_state(update, launch), {}};
    ir::add_waits(ir::launch_touched(module, update, ir::facts(module, update)->kernels), *update.schedule);
  }
  ir::Region& step = module.step;
  if (!step.schedule || step.schedule->persistent) return true;
  ir::Schedule& schedule = *step.schedule;
  const ir::Facts facts = ir::facts(module, step);
  const std::vector<bool> fit = fit_second_stream(step, *facts);
  for (ir::Launch& launch : schedule.launches) {
    if (ir::as_copy(*ir::calls(launch).front()) != nullptr) {
      ir::branch(launch) = {ir::kStreamOfFetches, {}};
      continue;
    }
    // A kernel that a product may run itself has no level, and stays with its product.
    const bool aside = std::ranges::all_of(ir::calls(launch), [&](const ir::CallSite* call) {
      return call->level && fit[facts->numbers[call->kernel]];
    });
    ir::branch(launch) = {aside ? 1 : 0, {}};
  }
  const std::vector<ir::Touched> touched = ir::launch_touched(module, step, facts->kernels);
  do ir::add_waits(touched, schedule);
  while (bring_back(schedule.launches, ir::LaunchOrder(schedule)));
  return true;
}

}  // namespace gacc::passes
