// The Shape of the attention kernels, for which they are compiled.
#pragma once
#include "kernels/handwritten.h"

namespace gacc::kernels {

// A row of the kernel's domain is a block of this many neighbouring positions (queries, or keys) of one head of one
// sample. Each block of a head of keys has a row for every head of queries that shares those keys. In the gradient
// these rows compute d_q, and the block has one more row, which computes d_k and d_v as sums over those heads of
// queries, one after the other. By tensor cores, wide heads have two more rows instead, one for d_k and one for d_v:
// both together need more registers than a thread has.
inline constexpr int64_t kAttentionBlock = 64;

// The threads of a GPU that share a position, and the channels of each; not by tensor cores.
struct Team {
  static constexpr int64_t kMostChannels = 16, kMostWithoutTeam = 8;
  // Returns the number of threads: the least power of two that gives each at most kMostChannels, and at most a warp;
  // wider heads are not in registers. One thread has kMostWithoutTeam channels at most: LLVM keeps its rows in
  // registers from the products to the sums.
  static int64_t threads(int64_t channels);
  // Neighbouring channels that a thread reads at once, and that go round the team.
  static int64_t chunk(int64_t channels) { return channels % 4 == 0 ? 4 : channels % 2 == 0 ? 2 : 1; }
  // The channels of a thread that has the most.
  static int64_t share(int64_t channels, int64_t team) {
    return ceil_divide(channels / chunk(channels), team) * chunk(channels);
  }
};

struct AttentionShape {
  int64_t heads, kv_heads, length, channels;  // H, K, T, D
  int64_t block;                              // positions of a row: kAttentionBlock, or T where that is less
  int64_t causal;                             // 0 or 1
  int64_t window;                             // a query sees so many positions, itself the last; 0: no limit
  int64_t words;                              // the slot where dropout's four words begin; 0: no dropout
  int64_t documents;                          // the slot of their numbers, and then of the spans; 0: none
  int64_t operands;                           // slots before the results
  static constexpr int32_t kStatistics = 1, kDelta = 2, kDy = 3;  // slots of a gradient, behind that of qkv
  int32_t result() const { return static_cast<int32_t>(operands); }
  double p;            // dropout's
  double scale;        // multiplies the product of a query and a key
  double softcap;      // makes a score of it, softcap tanh(. / softcap); 0: it is the score
  int64_t parts;       // forward 1; 2 or 3 are what a gradient is made of: d_q, and d_k with d_v or each
  int64_t tile = 0;    // by tensor cores (attention_mma.cpp): positions that pass by at a time; else 0
  int64_t modern = 0;  // they are those of sm_80 and later
  int64_t team = 0;    // GPU, not by tensor cores: threads that share a position; 0 on the host
  // By tensor cores: positions of a warp, 16 or 32. A tile's rows in shared memory serve so many at once.
  int64_t warp_rows = 16;
  int64_t threads() const { return block / warp_rows * kWarp; }
  // By tensor cores: heads of keys, of one or more samples, whose blocks take turns, so that the GPU has all of them.
  int64_t together = 1;
  // Positions that a team meets at a time: with more, ptxas fetches more rows ahead than it has registers
  // for.
  int64_t step() const { return parts > 1 ? 2 : 4; }
  // Returns what a product is multiplied by before its tangent, or to be a score where there is no cap.
  double query_scale() const { return softcap > 0 ? scale / softcap : scale; }
  int64_t group() const { return heads / kv_heads; }            // heads of queries that meet a head of keys
  int64_t rows() const { return group() + parts - 1; }          // of a block of a head of keys
  int64_t width() const { return heads * channels; }            // of the output
  double kept() const { return words != 0 ? 1 / (1 - p) : 1; }  // what dropout multiplies by, where it keeps
  int64_t row() const { return (heads + 2 * kv_heads) * channels; }  // of a position of qkv
  // Returns the begin of the channels of query, key and value (0, 1, 2) in such a row.
  int64_t begin(int64_t which) const { return which == 0 ? 0 : width() + (which - 1) * kv_heads * channels; }
  int64_t blocks() const { return ceil_divide(length, block); }
  // Returns true if a query may not see a key of a tile that it meets, wherever the tile is.
  bool masks() const { return causal != 0 || documents != 0; }
  // Returns true if the first tile that a query meets may have no key that it sees.
  bool starts_blind() const { return window > 0 || documents != 0; }
  // By tensor cores: two stages, each of two tiles of rows, and in the gradient three statistics of a position
  // (of a warp's worth at least, which must stay together).
  int64_t row_bytes() const { return 2 * channels + 16; }
  int64_t tile_bytes() const { return tile * row_bytes(); }
  int64_t statistics() const { return tile > 32 ? tile : 32; }
  int64_t stage_bytes(bool gradient) const { return 2 * tile_bytes() + (gradient ? 12 * statistics() : 0); }
  // Warps of 32 rows have no registers for the gradient's own keys and values: these are there as well.
  int64_t own_bytes(bool gradient) const { return gradient && warp_rows > 16 ? 2 * block * row_bytes() : 0; }
  int64_t shared_bytes(bool gradient) const { return own_bytes(gradient) + 2 * stage_bytes(gradient); }
  // Bytes of shared memory that are fetched for each element of the scores.
  double fetched(bool gradient) const;
};
// The random stream is an argument rather than compiled in, so that all layers share one function.
inline constexpr size_t kAttentionStream = 2;  // its index among the extents

}  // namespace gacc::kernels
