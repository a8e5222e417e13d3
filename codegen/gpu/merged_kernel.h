// Several launches as one kernel: side by side where they are independent of each other (the update of all
// parameters), one after the other with barriers of the whole grid between them (a persistent step).
//
// The merged kernel walks a table in constant memory. A phase is a set of independent tasks; a task is one
// planned call: which function, its arguments, how many blocks of work. Every function stands in the
// kernel once. Its blocks of work are taken in turns by *places*: as many threads as the function wants,
// with a barrier and a part of the shared memory of their own, so that a block of 256 threads is four places
// of 64. Functions are copies of the very kernels that would have been launched, so results are equal to the
// bit.
#pragma once
#include <vector>

#include "codegen/plan_launches.h"

namespace llvm {
class Function;
class Module;
}  // namespace llvm

namespace gacc::codegen {

// Emits the kernel into `module`, which holds the tasks' own entries, optimised. Its parameters are the arena
// and the number of samples. Unfit, which is a bug, is an entry that cannot be a part of another kernel: it uses
// more than thread and block indices, `bar.sync 0` and the shared memory that its task says.
void emit_merged(llvm::Module& module, const PlanMerged& merged);

// Removes entries that none of the launches names.
void drop_unused(llvm::Module& module, const std::vector<PlanProgram>& programs);

// The driver may not start the kernel with more threads, so ptxas can plan its registers for this many; and
// for so many blocks on a multiprocessor (0: as it likes).
void set_block(llvm::Function& function, int64_t threads, int64_t blocks = 0);

}  // namespace gacc::codegen
