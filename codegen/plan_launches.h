// The programs of the plan, written down from the schedules. Nothing is decided here, and there is no LLVM: who
// opens an artifact makes them, too.
#pragma once
#include <string>
#include <vector>

#include "ir/module.h"
#include "kernels/program.h"
#include "runtime/plan.h"

namespace gacc {

// Returns the launches of each region of a scheduled module. `program` is the module's for its target.
std::vector<PlanProgram> plan_programs(const ir::Module& module, const kernels::ModuleKernels& program);

// A call as a part of a kernel that does several (codegen/gpu/merged_kernel.h): an entry, its arguments, and how many
// blocks of work it has, a product of two numbers.
struct PlanTask {
  // `factor`, times the samples when `batch`; divided by `by`, rounded up.
  struct Count {
    int64_t factor = 1, by = 1;
    bool batch = false;
    int64_t at(int64_t samples) const { return ceil_divide(factor * (batch ? samples : 1), by); }
  };
  std::string entry;
  std::vector<PlanArgument> arguments;
  Count down, across;
  int64_t threads = 0, places = 1, shared = 0;  // of a place, places of a block, and bytes of a place
  int64_t blocks(int64_t samples) const { return down.at(samples) * across.at(samples); }
  bool batch() const { return down.batch || across.batch; }
};

// A kernel that does several calls: side by side in a phase. Launches that share the kernel have a phase each, and
// say which; a persistent kernel does all, with a barrier of the grid between them.
struct PlanMerged {
  std::string name;
  int64_t block = 0;
  bool persistent = false;
  std::vector<std::vector<PlanTask>> phases;
};
// Returns them in the order in which their code is emitted.
std::vector<PlanMerged> plan_merged(const ir::Module& module, const kernels::ModuleKernels& program);

}  // namespace gacc
