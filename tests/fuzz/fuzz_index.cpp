// libFuzzer target for the index of shards: any bytes give sorted names of plain files, each once, or an error.
// And for patterns: the first line of the bytes matches the second one, or does not.
#include "runtime/weights/weights.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  gacc::Result<std::vector<gacc::ShardOf>> read = gacc::parse_index(text, "f");
  gacc::fuzz::check_status(read.status());
  const std::vector<gacc::ShardOf> shards = read ? read.take() : std::vector<gacc::ShardOf>();
  for (size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].file.empty() || shards[i].file.find('/') != std::string::npos) __builtin_trap();
    if (i > 0 && !(shards[i - 1].tensor < shards[i].tensor)) __builtin_trap();
  }
  const size_t line = std::min(text.find('\n'), size);
  const std::string_view pattern = text.substr(0, line), name = text.substr(std::min(line + 1, size));
  if (!gacc::matches_pattern(pattern, name) && pattern == "*") __builtin_trap();
  return 0;
}
