// Calls of the kernels that go on with a text by the keys and values of its earlier positions (ir/ops/cache.cpp).
#include <algorithm>

#include "ir/ops/heads.h"
#include "kernels/handwritten/calls.h"

namespace gacc::kernels {

namespace {

CacheShape shape_of(const ir::Heads& of, int64_t positions) {
  return {.heads = of.heads, .kv_heads = of.kv_heads, .channels = of.channels, .positions = positions};
}

Specialisation with_shape(Specialisation made, const CacheShape& shape) {
  made.body.shape = CompiledShape(shape);
  return made;
}

}  // namespace

// An item is a channel of a head, of the first sample.
Specialisation describe_cache_put(const ir::OpView& op, Purpose) {
  const bool keys = op.flag("keys");
  CacheShape shape = shape_of(ir::heads_of(op, 1), op.result().shape[keys ? 1 : 0]);
  shape.keys = keys ? 1 : 0;
  return with_shape(thread_items(op, extent_of({shape.kv_heads * shape.channels}), 10), shape);
}

// A row is a head of queries, a point one of the positions.
Specialisation describe_cache_scores(const ir::OpView& op, Purpose purpose) {
  CacheShape shape = shape_of(ir::heads_of(op), op.result().shape.back());
  shape.window = op.integer("window");
  shape.scale = ir::score_scale(op);
  shape.softcap = op.real("softcap");
  return with_shape(
      point_items(op, purpose, extent_of({ir::kBatch, shape.heads}), shape.positions, 4 * shape.channels),
      shape);
}

// A row is a head of queries, a point one of its channels.
Specialisation describe_cache_read(const ir::OpView& op, Purpose purpose) {
  const ir::Shape weights = op.operand(0).shape;
  const int64_t heads = weights[1];
  CacheShape shape =
      shape_of({heads, op.integer("kv_heads"), op.result().shape.back() / heads}, weights.back());
  shape.window = op.integer("window");
  return with_shape(
      point_items(op, purpose, extent_of({ir::kBatch, heads}), shape.channels, 4 * shape.positions), shape);
}

}  // namespace gacc::kernels
