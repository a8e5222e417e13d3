// Several ranks: whether a launcher (mpirun, srun) has started this process as one of many, what of the
// machine is this rank's, and starting them.
#pragma once
#include <memory>
#include <string>

#include "runtime/collective.h"

namespace gacc {

// The ranks of this run: alone, unless the variables that a launcher sets for the MPI library say otherwise.
Status open_collective(const CollectiveOptions& options, std::unique_ptr<Collective>& ranks);

// This rank's share of its machine.
struct RankPlace {
  int local_rank = 0;  // among the ranks of this machine
  int threads =
      0;  // processors that this process may use, divided by the ranks that may use them too; 0: alone
};
Status find_place(Collective& ranks, RankPlace& place);

// Becomes `mpirun -n ranks` of this program with the same arguments but --ranks. Returns only with an error.
Status start_ranks(int64_t ranks, int argc, char** argv);

}  // namespace gacc
