// Matrices in ggml's blocks: runs of 32 or 256 numbers of a row that share a scale. The same bytes as ggml's
// reference writes, and the same numbers as it reads.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/status.h"

namespace gacc {

struct BlockFormat {
  std::string_view name;   // as in a GGUF: "Q8_0"
  int64_t numbers, bytes;  // of one block
  // Reads one block.
  void (*unpack)(const std::byte* from, float* to);
  // Writes one block of finite numbers; false where a half has no room for its scale. Null: a format only to be read.
  bool (*pack)(const float* from, std::byte* to);
  // The places of a block's halves; twice the same where it has one. Where they are finite, so are all of its numbers:
  // their factors are small.
  int64_t halves[2];
};
// Takes a name in either case; null where there is no such format.
const BlockFormat* block_format(std::string_view name);

// Writes whole blocks. An error names the tensor, and the place of the number in it: `numbers` are those from number
// `first` on.
Status quantize(const BlockFormat& format, std::span<const float> numbers, std::byte* to,
                std::string_view tensor, int64_t first = 0);
// Says whether all numbers of whole blocks are finite.
bool all_finite(const BlockFormat& format, std::string_view blocks);
// Reads the numbers from number `first` on, which need not begin a block.
void dequantize(const BlockFormat& format, const std::byte* blocks, int64_t first, std::span<float> to);

}  // namespace gacc
