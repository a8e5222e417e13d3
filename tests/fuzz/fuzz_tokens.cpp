// libFuzzer target for streams of tokens: the first bytes choose the element, the part, the length and the
// limit; any stream then gives windows that fit it, or an error.
#include "runtime/data/source.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  constexpr const char* kSplits[] = {"", "train", "test"};
  const char* split = kSplits[data[0] % 3];
  const char* dtype = data[0] / 3 % 2 == 0 ? "u8" : "u16";
  const int64_t length = data[1] == 255 ? INT64_MAX : data[1] + 1;
  std::optional<int64_t> limit;
  if (data[2] != 0) limit = data[2];
  const std::string_view stream(reinterpret_cast<const char*>(data) + 3, size - 3);
  const gacc::Result<gacc::TokenWindows> read =
      gacc::cut_tokens(static_cast<int64_t>(stream.size()), "f", dtype, split, length, limit);
  gacc::fuzz::check_status(read.status());
  if (!read) return 0;
  const gacc::TokenWindows& cut = *read;
  const int64_t end =
      static_cast<int64_t>(cut.first) + (cut.windows * length + 1) * gacc::element_bytes(dtype);
  if (cut.windows < 1 || (limit && cut.windows > *limit)) __builtin_trap();
  if (end > static_cast<int64_t>(stream.size())) __builtin_trap();
  return 0;
}
