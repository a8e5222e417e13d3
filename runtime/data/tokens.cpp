// See tokens.h.
#include "runtime/data/tokens.h"

#include <algorithm>

#include "runtime/data/array.h"
#include "runtime/data/philox.h"

namespace gacc {

Status cut_tokens(int64_t bytes, std::string_view name, std::string_view dtype, StreamPart part,
                  int64_t length, std::optional<int64_t> limit, TokenWindows& out) {
  const int64_t each = element_bytes(dtype);
  if (bytes % each != 0)
    return Status::error("{}: has {}, but its tokens have {} each", name, counted(bytes, "byte"),
                         counted(each, "byte"));
  int64_t tokens = bytes / each, first = 0;
  if (part != StreamPart::all) {
    const int64_t cut = tokens / 10 * 9 + tokens % 10 * 9 / 10;
    first = part == StreamPart::test ? cut : 0;
    tokens = part == StreamPart::test ? tokens - cut : cut;
  }
  if (tokens - 1 < length)
    return Status::error("{}: {} {}; one sample takes {}, and one more for the last target", name,
                         part == StreamPart::all     ? "holds"
                         : part == StreamPart::train ? "the first 90 % are"
                                                     : "the last 10 % are",
                         counted(tokens, "token"), length);
  const int64_t windows = std::min((tokens - 1) / length, limit.value_or(tokens));
  out = {.windows = windows, .first = static_cast<size_t>(first * each)};
  return {};
}

std::vector<std::byte> make_token_windows(int64_t samples, int64_t length, int64_t range, uint64_t seed,
                                          bool test) {
  const auto alphabet = static_cast<uint32_t>(std::min<int64_t>(range, 256));
  const auto stream = static_cast<uint32_t>(test ? RandomStream::test_tokens : RandomStream::train_tokens);
  std::vector<std::byte> out;
  out.reserve(static_cast<size_t>(samples * (length + 1)));
  for (int64_t sample = 0; sample < samples; ++sample) {
    uint32_t before = 0, last = 0;
    for (int64_t i = 0; i <= length; ++i) {
      const PhiloxCounter random =
          philox({static_cast<uint32_t>(i), static_cast<uint32_t>(sample),
                  static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32), stream},
                 seed);
      // The rule is linear, so that a small model finds it: next = last + before + 1 in the alphabet.
      uint32_t next = (last + before + 1) % alphabet;
      if (i < 2 || random[0] % 8 == 0) next = random[1] % alphabet;
      out.push_back(static_cast<std::byte>(next));
      before = last;
      last = next;
    }
  }
  return out;
}

}  // namespace gacc
