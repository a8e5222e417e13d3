// Shared by the passes over schedules.
#pragma once
#include <string>
#include <vector>

#include "ir/dependence.h"
#include "ir/region_facts.h"

namespace gacc::passes {

// Runs all of the passes here, in their order, on a planned module; false and a diagnostic as passes do.
[[nodiscard]] bool schedule(ir::Module& module, const std::string& target, Diag& diag);

// Compares the functions, operands, extents, grids, blocks, tiles and shared memory of a schedule with those
// of its kernels: "", or one sentence about the first call that differs. The module verifies.
std::string check_schedule(const ir::Module& module);

// Finds which launches of a region must keep their order: products do what they do besides. Kernels are numbered
// as in `facts`.
ir::Dependence launch_dependence(const ir::Module& module, const ir::Region& region,
                                 const ir::RegionFacts& facts);

// Marks the kernels of a step that a graph may have on its second stream: what they make no other ones need.
std::vector<bool> fit_second_stream(const ir::Region& region, const ir::RegionFacts& facts);

// Returns why calls cannot share a kernel, or "".
std::string cannot_share(const std::vector<const ir::CallSite*>& calls, int64_t micro_batch);

// Threads of a block that kernels share without being asked to; with more, each thread has few registers, and
// a product or a kernel of much state would spill them.
inline constexpr int64_t kMostSharedThreads = 512;

}  // namespace gacc::passes
