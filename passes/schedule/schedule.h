// What the passes over schedules share.
#pragma once
#include <string>
#include <vector>

#include "ir/dependence.h"

namespace gacc::passes {

// All of the passes here, in their order, on a planned module; false and a diagnostic as passes do.
[[nodiscard]] bool schedule(ir::Module& module, const std::string& target, Diag& diag);

// Whether the functions, operands, extents, grids, blocks, tiles and shared memory of a schedule are those of
// its kernels: "", or one sentence about the first call that differs. The module verifies.
std::string check_schedule(const ir::Module& module);

// Which launches of a region must keep their order: products do what they do besides. Kernels are numbered as
// in the list.
ir::Dependence launch_dependence(const ir::Module& module, const ir::Region& region,
                                 const std::vector<ir::Kernel>& kernels);

// Of a step's kernels, those that a graph may have on its second stream: what they make no other ones need.
std::vector<bool> fit_second_stream(const ir::Region& region, const std::vector<ir::Kernel>& kernels);

// Why calls cannot share a kernel; "" when they can. `levels` as ir::by_level gives them.
std::string cannot_share(const std::vector<std::vector<const ir::Call*>>& levels, int64_t micro_batch);

// Threads of a block that kernels share without being asked to; with more, each thread has few registers, and
// a product or a kernel of much state would spill them.
inline constexpr int64_t kMostSharedThreads = 512;

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

}  // namespace gacc::passes
