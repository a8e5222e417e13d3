// Streams of tokens cut into windows: the first input of a sample is one window of the stream, the second the
// same window one token later. Samples follow each other without a gap: the window after a window starts
// where it ended, so sample i begins at token i * length, and its last target is the first token of sample
// i + 1.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc {

// Which tokens of a stream are used: all, the first 90 % (rounded down), or what these leave.
enum class StreamPart : uint8_t { all, train, test };

struct TokenWindows {
  int64_t windows = 0;  // at least 1
  size_t first = 0;     // byte of the stream at which they begin: windows * length + 1 tokens
};

// Cuts a stream of `bytes` bytes, little-endian tokens of `dtype`, into windows of `length` >= 1 tokens, at
// most `limit` of them; tokens left over at the end are not used. Errors call the stream `name`.
Status cut_tokens(int64_t bytes, std::string_view name, std::string_view dtype, StreamPart part,
                  int64_t length, std::optional<int64_t> limit, TokenWindows& out);

// The generated set `synthetic:tokens`: sequences over an alphabet of min(range, 256) tokens in which the two
// tokens before it fix the next one seven times out of eight, by a rule that the train and the test set
// share. Window i has length + 1 tokens [samples, length + 1] u8 and is a pure function of (seed, test, i).
std::vector<std::byte> make_token_windows(int64_t samples, int64_t length, int64_t range, uint64_t seed,
                                          bool test);

}  // namespace gacc
