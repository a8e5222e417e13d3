// Which launches of a program may run side by side, and when a whole micro-batch should be one kernel. No
// LLVM here: the plan writer asks before there is code.
#pragma once
#include <string>
#include <vector>

#include "codegen/emit/program.h"
#include "codegen/epilogues.h"
#include "ir/module.h"

namespace gacc::codegen {

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

}  // namespace gacc::codegen
