// Pass `merge`: small kernels that do not wait for each other become one launch.
//
//   update, and closing a lane   all kernels of a level; the launches are sorted by level for that
//   step                         neighbours that would each leave most of a GPU idle, such as the second
//                                halves of column sums; the order of the launches stays

#include <algorithm>

#include "ir/host_state.h"
#include "kernels/gemm.h"
#include "passes/launch_mode.h"
#include "passes/pass.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

namespace {

// "mul_adam_fill_14" -> "mul_adam_fill"
std::string without_number(const std::string& function) { return function.substr(0, function.rfind('_')); }

bool all_kernels(const ir::Calls& calls) {
  return std::ranges::all_of(calls,
                             [](const ir::CallSite* call) { return ir::as_product(*call) == nullptr; });
}

// Makes launches of calls. Merged ones with the same functions share their code: one name, that of the first.
class Launches {
 public:
  Launches(const ir::Module& module, const ir::Region& region)
      : micro_batch_(module.micro_batch()), region_(region) {}

  void add(const ir::CallSite& call) { launches_.emplace_back(call); }
  // As one launch where they can be one, else one by one. `number` makes the name.
  void add(const ir::Calls& calls, size_t number) {
    if (calls.size() < 2 || !all_kernels(calls) || !cannot_share(calls, micro_batch_).empty()) {
      for (const ir::CallSite* call : calls) add(*call);
      return;
    }
    std::vector<std::string> functions;
    for (const ir::CallSite* call : calls) functions.push_back(ir::as_kernel(*call)->function);
    ir::Merged merged;
    merged.function = names_
                          .try_emplace(functions, fmt::format("{}_{}_{}", ir::region_text(region_.kind),
                                                              number, without_number(functions.front())))
                          .first->second;
    merged.block = ir::merged_block({calls});
    merged.blocks = ir::merged_blocks({calls}, merged.block, micro_batch_);
    for (const ir::CallSite* call : calls) merged.parts.push_back(*call);
    launches_.emplace_back(std::move(merged));
  }
  std::vector<ir::Launch> take() { return std::move(launches_); }

 private:
  const int64_t micro_batch_;
  const ir::Region& region_;
  std::map<std::vector<std::string>, std::string> names_;  // by the functions of the parts
  std::vector<ir::Launch> launches_;
};

void merge_levels(const ir::Module& module, ir::Region& region) {
  // Launches around state on the host follow its copies, not the levels.
  if (!region.schedule || ir::passes_state(region)) return;
  ir::Schedule& schedule = *region.schedule;
  const ir::Levels levels = ir::by_level(schedule);
  Launches launches(module, region);
  for (size_t level = 0; level < levels.size(); ++level) launches.add(levels[level], level);
  // The kernels that products may run themselves come last: they have no place in the order.
  for (const ir::CallSite* call : ir::calls(std::as_const(schedule)))
    if (!call->level) launches.add(*call);
  schedule.launches = launches.take();
}

// Tells whether a call may share a launch of the step: it is a kernel that leaves most of a GPU idle.
bool small(const ir::CallSite& call, int64_t micro_batch) {
  const ir::KernelCall* kernel = ir::as_kernel(call);
  return kernel != nullptr && call.level && kernel->block <= kMostSharedThreads &&
         ir::blocks(call, micro_batch) < kernels::kBlocksThatFillGpu;
}

void merge_neighbours(const ir::Module& module, ir::Region& region) {
  if (!region.schedule) return;
  const int64_t micro_batch = module.micro_batch();
  const ir::Facts facts = ir::facts(module, region);
  const ir::KernelNumbers& numbers = facts->numbers;
  ir::Dependence dependence = launch_dependence(module, region, *facts);

  std::vector<std::vector<ir::CallSite*>> runs;
  for (ir::CallSite* call : ir::calls(*region.schedule)) {
    const auto joins = [&](const ir::CallSite* other) {
      return small(*other, micro_batch) && !dependence.between(numbers[other->kernel], numbers[call->kernel]);
    };
    const bool one = !runs.empty() && small(*call, micro_batch) && std::ranges::all_of(runs.back(), joins);
    if (!one) runs.emplace_back();
    runs.back().push_back(call);
  }
  for (const std::vector<ir::CallSite*>& run : runs)
    for (size_t i = 1; i < run.size(); ++i)
      dependence.join(numbers[run.front()->kernel], numbers[run[i]->kernel]);
  const std::vector<int32_t> levels = dependence.earliest_levels();
  Launches launches(module, region);
  for (const std::vector<ir::CallSite*>& run : runs) {
    const size_t first = numbers[run.front()->kernel];
    for (ir::CallSite* call : run)
      if (call->level) call->level = levels[first];
    launches.add(ir::Calls(run.begin(), run.end()), first);
  }
  region.schedule->launches = launches.take();
}

}  // namespace

bool merge(ir::Module& module, const Options&, Diag&) {
  for (ir::Region* region : {&module.update, &module.close, &module.norms, &module.ratios, &module.clear})
    merge_levels(module, *region);
  // A persistent kernel wants few levels, and has no launches between them.
  if (!is_persistent_step(module)) merge_neighbours(module, module.step);
  return true;
}

}  // namespace gacc::passes
