// Which launches of a program may run side by side, when a whole micro-batch should be one kernel, and how
// launches that become one kernel stand in the plan. No LLVM here: the plan writer asks before there is code.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codegen/emit/program.h"
#include "codegen/epilogues.h"
#include "ir/module.h"
#include "runtime/plan.h"

namespace gacc::codegen {

struct DeviceCode;

// For each call of a region that is a launch (aliases are none), in order: the first step in which it can
// run, when every step begins after all launches of the one before it have ended. Two launches share a step
// only when neither writes bytes of the arena that the other touches. A kernel that its product does is no
// launch, and its place is kInItsProduct. The module is planned.
std::vector<int> launch_levels(const ir::Module& module, const ir::Region& region,
                               const std::vector<Call>& calls, const std::vector<Epilogue>& epilogues = {});
inline constexpr int kInItsProduct = -1;

// How a micro-batch, and the update, run on the GPU, by launch.mode.
struct LaunchMode {
  bool persistent = false;  // a micro-batch is one cooperative kernel ...
  bool required = false;    // ... or does not run: the model file asks for it
  bool update = false;      // the update is one, where the GPU can run it
};
// "auto" takes the persistent kernel for a small step: one that moves at most kSmallStepBytes, which the
// second-level cache of a data-centre GPU holds, and computes at most kSmallStepFlops, so that waiting for
// launches and not arithmetic is what it would spend its time with; and one kernel for an update of at most
// kSmallUpdateKernels.
LaunchMode launch_mode(const ir::Module& module);
inline constexpr int64_t kSmallStepBytes = int64_t{40} << 20;
inline constexpr int64_t kSmallStepFlops = 500'000'000;
inline constexpr int64_t kSmallStepKernels = 96;  // beyond: the kernel's code grows too large to be worth it
// Of the update, whose kernels are small: beyond, ptxas spills registers (gpt2_124m in f16 has 347 and did).
inline constexpr int64_t kSmallUpdateKernels = 300;

// Several launches that are to become one kernel (codegen/merge.h).
struct MergeRequest {
  std::string name;                         // the entry's
  std::vector<std::vector<size_t>> phases;  // indices into the launches; more than one: a cooperative kernel
  int64_t micro_batch = 1;
};

// How that kernel stands in the plan: all but its grid, the most blocks that have work in any phase, which
// depends on the kernel's shared memory. Any grid computes the same.
PlanLaunch merged_launch(const MergeRequest& request, const std::vector<PlanLaunch>& launches);

// Gives the merged kernel's launch, or nothing and a sentence in `problem`.
using Merge = std::function<std::optional<PlanLaunch>(
    const MergeRequest& request, const std::vector<PlanLaunch>& launches, std::string& problem)>;

// Merges in code.programs what launch.mode and the order of the launches allow, by `merge`: launches of the
// update that are independent of each other; unless launch.mode is "graph", all of them, with barriers of the
// grid in between; and all of `step`, where launch.mode wants it. What `merge` refuses stays as it is. False
// and a sentence in `problem` when the step must be one kernel and is not. The module is planned.
[[nodiscard]] bool merge_programs(const ir::Module& module, DeviceCode& code, const Merge& merge,
                                  std::string& problem);

}  // namespace gacc::codegen
