// What the attention kernels are compiled for, as the parameters of their functions.
#pragma once
#include "codegen/emit/program.h"

namespace gacc::codegen {

// A row of the kernel is one block of kAttentionBlock neighbouring positions (queries, or keys) of one head
// of one sample. In the gradient every block has `parts` rows: 2 are d_q, and d_k with d_v; 3 are d_q, d_k
// and d_v. With 3 a lane holds three arrays of D values instead of four, and computes scores once more: for
// the registers of a GPU's thread.
inline constexpr int64_t kAttentionBlock = 64;

struct AttentionShape {
  int64_t heads, length, channels;  // H, T, D = C / H
  int64_t block;                    // positions of a row: kAttentionBlock, or T where that is less
  bool causal;
  int64_t words;        // the slot where dropout's four words begin; 0: no dropout
  double p;             // dropout's
  int64_t parts;        // rows of a block
  int64_t tile = 0;     // by tensor cores (attention_mma.cpp): positions that pass by at a time; else 0
  bool modern = false;  // they are those of sm_80 and later
  int64_t width() const { return heads * channels; }
  int64_t blocks() const { return (length + block - 1) / block; }
  std::vector<int64_t> list() const;
  static AttentionShape of(const Body& body);  // from body.parameters
};
// The random stream is an argument rather than compiled in, so that all layers share one function.
inline constexpr size_t kAttentionStream = 2;  // its index among the extents

}  // namespace gacc::codegen
