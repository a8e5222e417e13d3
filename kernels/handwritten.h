// Calls of hand-written kernels (Lowering::handwritten): extents, work items, tiles and blocks, and the numbers that
// are compiled into the function, a Shape for each family (handwritten/calls.h). The loop nest over Target is the
// other half, written once for all targets (codegen/emit/handwritten/emitters.h).
//
// Slots are the op's operands in order, then its results, then the flag of when(); a slot keeps its dtype,
// and Target::load and store convert. The schedules that an emitter may use (codegen/emit/target.h):
//
//   t.points(on_row, on_point)  extents {rows, columns}; host: an item is a row, walked in vectors of lanes;
//                               device: an item is `vector` neighbouring elements, a thread each.
//                               `point_items` fills this in, with one element.
//   t.items(on_item)            extents {items}; host: a loop; device: a thread each. `thread_items`.
//   t.parts(on_part)            extents {items}; host: a loop; device: a block each, whose threads share the
//                               work by t.reduce and t.once. `block_items`.
//
// Results must depend neither on how items are cut into tasks nor on the number of threads: an item's stores
// are its own.
#pragma once
#include "kernels/specialisation.h"

namespace gacc::kernels {

// Describes the call of an op with Lowering::handwritten, without slots and operands. body.op is null for a library
// call of the host. Throws Unfit for an op that the list in handwritten.cpp does not have.
Specialisation describe_handwritten(const ir::OpView& op, Purpose purpose, const GpuTarget& gpu);
// The usual calls. `work`: scalar operations of an item (of a point: of one element); host tasks are cut so
// that they take some microseconds.
Specialisation point_items(const ir::OpView& op, Purpose purpose, Extent rows, int64_t columns, int64_t cost);
Specialisation thread_items(const ir::OpView& op, Extent items, int64_t work);
Specialisation block_items(const ir::OpView& op, Extent items, int64_t work, int64_t threads);

// Returns the largest divisor of `n` that is at most `most`: so many of n neighbours have one thread, or task.
int64_t largest_divisor(int64_t n, int64_t most);

}  // namespace gacc::kernels
