// The division of a position's channels into heads: H of queries, then K of keys, then K of values, each of D
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

// Positions that share their spans of keys (op `documents.spans`), and the planes of spans.
inline constexpr int64_t kSpanBlock = 64, kSpanPlanes = 4;
constexpr int64_t span_blocks(int64_t length) { return ceil_divide(length, kSpanBlock); }

// Returns twice the number of pairs of a query and a key that meet, of one head of a sample, where the half of a
// causal square is half of it. `window` 0: none. `document`: the positions of each, which are met in whole blocks; 0:
// all are of one.
constexpr int64_t twice_seen_pairs(int64_t length, bool causal, int64_t window, int64_t document) {
  const int64_t met = document > 0 && document + kSpanBlock < length ? document + kSpanBlock : length;
  if (window > 0 && window < met) return (2 * length - window) * window;
  return (causal ? 1 : 2) * length * met;
}
// Returns the mean length of the documents that an attention op is estimated for; 0: it knows none.
int64_t estimated_document(const OpView& op);

// Returns the heads of an operand [B,T,(H + 2 K) D].
Heads heads_of(const OpView& op, size_t operand = 0);
// The operand is such a tensor of floats.
void expect_heads(const OpView& op, size_t operand = 0);

// Returns what an op multiplies a product of a query and a key by: its `scale`, or 1 / sqrt(D) where that is 0.
double score_scale(const OpView& op);
// `scale` and `softcap` are 0 or more, and finite in f32.
void expect_scores(const OpView& op);
// Returns the score of a product that was multiplied by the scale: cap tanh(x / cap), or x itself where the cap is 0.
double capped_score(double x, double cap);

// Returns the angle in radians by which `rope` turns a pair of channels from one position to the next.
long double rope_frequency(const OpView& op, int64_t pair);

}  // namespace gacc::ir
