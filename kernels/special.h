// Kernels of their own (Lowering::special): how one is called. That is extents, work items, tiles and blocks,
// and the numbers that are compiled into the function (shapes, attributes). Its loop nest over Target is the
// other half, written once for both targets (codegen/emit/special/emitters.h).
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
#include "kernels/program.h"

namespace gacc::kernels {

struct SpecialCall {
  std::vector<Extent> extents{};         // the function's, in order
  std::vector<int64_t> parameters{};     // compiled in; kernels that differ here are different functions
  Extent items{};                        // as Call::items
  int64_t tile = 1;                      // host
  int64_t block = 256, per_block = 256;  // device
  int64_t vector = 1;                    // device: elements that a thread of t.points or t.reduce has at once
  int64_t resident = 0;                  // device: as Body::resident
  int64_t shared = 0;                    // device: as Body::shared
  bool wide_index = false;               // device: an operand has an element whose index needs 32 bits
  int cost = 10;                         // rough scalar operations a point
  bool library = false;                  // host: no code; codegen/host/library.h knows the op
  std::string_view variant{};            // another emitter of the op: found by its name and this
};

// One entry of the registry. `describe` sees the op in its place; shapes are as planned.
// `by_products` (of tiles, by tensor cores where there are some) comes first on a GPU, and says nothing where it
// does not take the op.
struct Special {
  std::string_view op;
  SpecialCall (*describe)(const ir::OpView& op, Purpose purpose);
  std::optional<SpecialCall> (*by_products)(const ir::OpView& op, const GpuTarget& gpu) = nullptr;
};

// How an op with Lowering::special is called; nothing when no entry has its name.
std::optional<SpecialCall> describe_special(const ir::OpView& op, Purpose purpose, const GpuTarget& gpu);
// The usual calls. `work`: scalar operations of an item (of a point: of one element); host tasks are cut so
// that they take some microseconds. `largest`: elements of the op's largest operand at the full micro-batch.
SpecialCall point_items(const ir::OpView& op, Purpose purpose, Extent rows, int64_t columns, int cost);
SpecialCall thread_items(const ir::OpView& op, Purpose purpose, Extent items, int64_t work);
SpecialCall block_items(const ir::OpView& op, Purpose purpose, Extent items, int64_t work, int64_t threads);

// The product of a shape's extents.
Extent extent_of(const ir::Shape& shape);

}  // namespace gacc::kernels
