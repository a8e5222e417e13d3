// The lanes of a window (setting train.lanes): the region that closes one.
#pragma once
#include "passes/pass.h"

namespace gacc::passes {

// The sums of lanes that one of `ranks` ranks holds at once at most, that of the open lane included: lanes
// close from left to right, and two whole halves of a subtree are added at once.
int64_t most_nodes(int64_t lanes, int64_t ranks);

// The most for any number of ranks from that one on.
int64_t most_nodes_from(int64_t lanes, int64_t ranks);

// Gives every sum of a window the buffers of its nodes, and writes the region `close`. Nothing with one lane.
void build_close(ir::Module& module, Diag& diag);

}  // namespace gacc::passes
