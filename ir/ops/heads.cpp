// See heads.h.
#include "ir/ops/heads.h"

namespace gacc::ir {

Heads heads_of(const OpView& op) {
  const int64_t heads = op.integer("heads"), given = op.integer("kv_heads"),
                kv_heads = given == 0 ? heads : given;
  return {heads, kv_heads, op.operand(0).shape[2] / (heads + 2 * kv_heads)};
}

void expect_heads(const OpView& op) {
  const Shape shape = op.operand(0).shape;
  if (!is_float(op.operand(0).dtype)) refuse(op, Kind::type_mismatch, {0}, "it takes floats");
  const int64_t heads = op.integer("heads"), kv_heads = op.integer("kv_heads");
  const bool shaped = shape.size() == 3 && has_batch(shape) && heads >= 1 && heads <= shape[2];
  if (kv_heads == 0) {
    if (!shaped || shape[2] % (3 * heads) != 0)
      refuse(op, Kind::shape_mismatch, {0}, "it must be [B,T,3 C] with C a multiple of {} heads", heads);
  } else if (!shaped || kv_heads < 1 || kv_heads > heads || heads % kv_heads != 0 ||
             shape[2] % (heads + 2 * kv_heads) != 0) {
    refuse(op, Kind::shape_mismatch, {0},
           "it must be [B,T,(H + 2 K) D] with H = {} heads, a multiple of K = {} kv_heads", heads, kv_heads);
  }
}

}  // namespace gacc::ir
