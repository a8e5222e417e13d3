// How the channels of a position divide into heads: H of queries, then K of keys, then K of values, each of D
// channels, from an op's attributes heads and kv_heads (0: as many as heads). K divides H: H / K neighbouring
// heads of queries, a group, share one of keys and one of values.
#pragma once
#include "ir/ops/common.h"

namespace gacc::ir {

struct Heads {
  int64_t heads, kv_heads, channels;  // H, K, D
  int64_t group() const { return heads / kv_heads; }
  int64_t all() const { return heads + 2 * kv_heads; }
  int64_t width() const { return heads * channels; }  // of attention's output
  int64_t row() const { return all() * channels; }    // of a position of qkv
  // Among all heads, that of the keys and of the values which a head of queries meets.
  int64_t key(int64_t query) const { return heads + query / group(); }
  int64_t value(int64_t query) const { return key(query) + kv_heads; }
};

// Returns the heads of operand 0, [B,T,(H + 2 K) D].
Heads heads_of(const OpView& op);
// Operand 0 is such a tensor of floats.
void expect_heads(const OpView& op);

// Returns the angle in radians by which `rope` turns a pair of channels from one position to the next.
long double rope_frequency(const OpView& op, int64_t pair);

}  // namespace gacc::ir
