// The sizes of the gated delta rule, by an op's attributes heads and key_heads (0: as many as heads). key_heads divides
// heads: neighbouring heads share one of queries and one of keys.
#pragma once
#include "ir/ops/common.h"

namespace gacc::ir {

struct DeltaRule {
  int64_t length, heads, key_heads;  // T, H, G
  int64_t keys = 0, values = 0;      // channels of a head: of queries and keys, K, and of values, V
  int64_t chunk = 1;                 // positions from one state that the gradient keeps to the next
  int64_t group() const { return heads / key_heads; }
  int64_t chunks() const { return ceil_divide(length, chunk); }
};

// Returns the sizes of `delta_rule` or of a part of its gradient. Without keys and values for `delta_rule.grad.decay`.
DeltaRule delta_rule_of(const OpView& op);

}  // namespace gacc::ir
