// From the kernels of a region to the launches of a GPU, before any are joined.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/program.h"

namespace gacc::kernels {

// One call for each kernel but reshapes, in order, each at a level of its own: the function or the tile, and
// what follows from them. `program` is the module's for this GPU. Nothing and a sentence in `problem` when a
// product has no launch.
std::optional<ir::Schedule> select(const ir::Module& module, const ir::Region& region,
                                   const ModuleKernels& program, const GpuTarget& gpu, std::string& problem);

// Makes the launch of one kernel that is no reshape, at no level. `from` is its call, and `body` what that calls,
// null for a product. Unfit is thrown for a product that has no launch.
ir::CallSite select_kernel(const ir::Module& module, const ir::Region& region, const BodyCall& from,
                           const Body* body, const GpuTarget& gpu);

// The built-in kernel of a product of a scheduled module, with what it does of the kernel behind it.
GemmKernel built_in(const ir::Module& module, const ir::Region& region, const ir::CallSite& product,
                    const ModuleKernels& program, const GpuTarget& gpu);

}  // namespace gacc::kernels
