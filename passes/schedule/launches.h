// Launches of a schedule: what follows from their kernels, and which may run beside each other or as one. Shared by the
// passes over schedules.
#pragma once
#include "ir/dependence.h"
#include "ir/region_facts.h"
#include "kernels/program.h"

namespace gacc::passes {

// Returns "" where the functions, operands, extents, grids, blocks, tiles and shared memory of a schedule are those
// of its kernels, and its launches wait as the streams want it; else one sentence about the first that differs (R29).
// The module verifies. `program` is the module's for its target.
std::string check_schedule(const ir::Module& module);
std::string check_schedule(const ir::Module& module, const kernels::ModuleKernels& program);

// Finds which launches of a region must keep their order: products do what they do besides. Kernels are numbered
// as in `facts`.
ir::Dependence launch_dependence(const ir::Module& module, const ir::Region& region,
                                 const ir::RegionFacts& facts);

// Marks the kernels of a step that a graph may have on its second stream: what they make no other ones need.
std::vector<bool> fit_second_stream(const ir::Region& region, const ir::RegionFacts& facts);

// Returns why calls cannot share a kernel, or "".
std::string cannot_share(const ir::Calls& calls, int64_t micro_batch);

// Threads of a block that kernels share without being asked to; with more, each thread has few registers, and
// a product or a kernel of much state would spill them.
inline constexpr int64_t kMostSharedThreads = 512;

}  // namespace gacc::passes
