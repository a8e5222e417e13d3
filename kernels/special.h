// Calls of hand-written kernels (Lowering::special): extents, work items, tiles and blocks, and the numbers that are
// compiled into the function (shapes, attributes). The loop nest over Target is the other half, written once for both
// targets (codegen/emit/special/emitters.h).
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
#include <bit>

#include "kernels/instance.h"

namespace gacc::kernels {

// How an op with Lowering::special is called: an instance but for its slots, and operands. body.special is the
// emitter's name, empty for a library call of the host. Unfit is an op that the list in special.cpp does not have.
Instance describe_special(const ir::OpView& op, Purpose purpose, const GpuTarget& gpu);
// The usual calls. `work`: scalar operations of an item (of a point: of one element); host tasks are cut so
// that they take some microseconds.
Instance point_items(const ir::OpView& op, Purpose purpose, Extent rows, int64_t columns, int cost);
Instance thread_items(const ir::OpView& op, Extent items, int64_t work);
Instance block_items(const ir::OpView& op, Extent items, int64_t work, int64_t threads);

// Packs the Shape that a function is compiled for, a struct of 64-bit numbers, into Body::parameters, and unpacks it.
template <class Shape>
std::vector<int64_t> words_of(const Shape& shape) {
  const auto words = std::bit_cast<std::array<int64_t, sizeof(Shape) / sizeof(int64_t)>>(shape);
  return {words.begin(), words.end()};
}
template <class Shape>
Shape shape_of(const Body& body) {
  std::array<int64_t, sizeof(Shape) / sizeof(int64_t)> words;
  std::copy_n(body.parameters.begin(), words.size(), words.begin());
  return std::bit_cast<Shape>(words);
}

// Returns the largest divisor of `n` that is at most `most`: so many of n neighbours have one thread, or task.
int64_t largest_divisor(int64_t n, int64_t most);
// Returns the product of a shape's extents.
Extent extent_of(const ir::Shape& shape);

}  // namespace gacc::kernels
