// What the attention kernels are compiled for, as the parameters of their functions.
#pragma once
#include "kernels/program.h"

namespace gacc::kernels {

// A row of the kernel is one block of kAttentionBlock neighbouring positions (queries, or keys) of one head
// of one sample. In the gradient every block has `parts` rows: 2 are d_q, and d_k with d_v; 3 are d_q, d_k
// and d_v, for the registers (by tensor cores, wide heads).
inline constexpr int64_t kAttentionBlock = 64;

// GPU, not by tensor cores: the threads that share a position, and what each has of its channels.
struct Team {
  static constexpr int64_t kWarp = 32, kOwn = 16, kAlone = 8;
  // A power of two, and so many that none has more than kOwn channels, or kAlone where it has all of them and
  // LLVM keeps rows from the products to the sums; but a warp at most (wider heads are not in registers).
  static int64_t threads(int64_t channels);
  // Neighbouring channels that a thread reads at once, and that go round the team.
  static int64_t chunk(int64_t channels) { return channels % 4 == 0 ? 4 : channels % 2 == 0 ? 2 : 1; }
  // The channels of a thread that has the most.
  static int64_t share(int64_t channels, int64_t team) {
    return (channels / chunk(channels) + team - 1) / team * chunk(channels);
  }
};

struct AttentionShape {
  int64_t heads, length, channels;  // H, T, D = C / H
  int64_t block;                    // positions of a row: kAttentionBlock, or T where that is less
  bool causal;
  int64_t words;        // the slot where dropout's four words begin; 0: no dropout
  double p;             // dropout's
  int64_t parts;        // rows of a block
  int64_t tile = 0;     // by tensor cores (attention_mma.cpp): positions that pass by at a time; else 0
  bool modern = false;  // they are those of sm_80 and later
  int64_t team = 0;     // GPU, not by tensor cores: threads that share a position; 0 on the host
  // Positions that a team meets at a time: with more, ptxas fetches more rows ahead than it has registers
  // for.
  int64_t step() const { return parts > 1 ? 2 : 4; }
  int64_t width() const { return heads * channels; }
  int64_t blocks() const { return (length + block - 1) / block; }
  // By tensor cores: two stages, each of two tiles of rows, and in the gradient three statistics of a position
  // (of a warp's worth at least, which must stay together).
  int64_t row_bytes() const { return 2 * channels + 16; }
  int64_t tile_bytes() const { return tile * row_bytes(); }
  int64_t statistics() const { return tile > 32 ? tile : 32; }
  int64_t stage_bytes(bool gradient) const { return 2 * tile_bytes() + (gradient ? 12 * statistics() : 0); }
  std::vector<int64_t> list() const;
  static AttentionShape of(const Body& body);  // from body.parameters
};
// The random stream is an argument rather than compiled in, so that all layers share one function.
inline constexpr size_t kAttentionStream = 2;  // its index among the extents

}  // namespace gacc::kernels
