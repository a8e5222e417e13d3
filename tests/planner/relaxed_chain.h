// Chains of single operations for which `Reversal` finds the cheapest of all schedules, not only of those it
// looks at.
//
// The graph must be a chain of single operations (chain.h), y_1, y_2, .., and its backward pass read it in
// falling order: each operation one y or two neighbours, neither later than what the one before reads. Of
// such a graph `relaxed_chain` makes one in which everything takes as many bytes, or fewer, so that the least
// cost of its schedules is a lower bound for the graph. One of two:
//   A. All y are of one size and one gradient at a time crosses from one operation to the next: nothing
//      changes, but for tensors that need only live to the end. They may go at once.
//   B. Else y_i takes the least of y_1's, .. y_i's bytes and gradients take none, save in the operations that
//      read or make them.
//
// Why no schedule of the relaxed graph is cheaper than the best that is *persistent* and *late* (reversal.h):
// 1. The forward pass runs straight on and the backward pass once. Where a schedule lacks what its next first
//    execution reads, it makes that again from something earlier, for the operations between the two run
//    again after this; their executions before can go. (B: gradients cost nothing to keep.)
// 2. Persistent (Griewank & Walther's checkpoint persistence). Let y_j be kept for a while and go before a
//    reader in the backward pass needs it. It was kept for passes that begin with it. Of what these make and
//    is kept or read let y_m be the first. Keep y_m instead of y_j as soon as the first of them has made it:
//    no pass needs what is before y_m, no execution is added, and y_m takes no more than y_j. What is kept
//    moves to the right, so this ends.
// 3. Late. Let a pass run before a reader that does not need what it makes; it can wait until that reader has
//    run.
//    A: the reader runs beside what the pass leaves behind, k tensors, and a y of its own. An operation of
//    the pass runs beside at most k - 1 of the former, has one y more and makes one, and gradients are no
//    more by then than when the reader ran. Where the reader's y must stay for the next reader, it counts on
//    both sides: there gradients must not grow (`steady`), but for the backward_begin, before which the first pass
//    could leave behind the same.
//    B: an operation pays for what it reads and makes and for what is kept, and of that there is no more
//    later.
// 4. Two readers of y_i in a row: it stays between them, or the pass for the second makes it again. Nothing
//    here asks for equal costs.
#pragma once
#include <optional>

#include "passes/planner/chain.h"

namespace gacc::passes::planner {

// Returns the chain whose every block is one operation that makes one tensor, and whose first operation of the
// backward pass reads the last of them; nothing for another graph.
std::optional<Chain> single_chain(const Graph& graph);

// Empty: the graph is no such chain.
Graph relaxed_chain(const Graph& graph, const Chain& chain);

// Returns what every schedule of a chain of single operations costs at least. Infinite: nothing fits. 0: nothing
// is known.
double chain_bound(const Graph& graph, int64_t budget);

}  // namespace gacc::passes::planner
