// Several ranks: whether a launcher (mpirun, srun) has started this process as one of many, what of the
// machine is this rank's, and starting them.
#pragma once
#include <memory>

#include "runtime/ranks/collective.h"

namespace gacc {

// The ranks of this run: alone, unless the variables that a launcher sets for the MPI library say otherwise.
Result<std::unique_ptr<Collective>> open_collective(const CollectiveOptions& options);

// This rank's share of its machine.
struct RankPlace {
  int local_rank = 0;  // among the ranks of this machine
  // Processors that this process may use, divided by the ranks that may use them too; 0: there is one rank.
  int threads = 0;
};
Result<RankPlace> find_place(Collective& ranks);

// Becomes `mpirun -n ranks` of this program with the same arguments but --ranks. Returns only with an error.
Status start_ranks(int64_t ranks, int argc, char** argv);

}  // namespace gacc
