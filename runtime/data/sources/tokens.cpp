// Files of tokens: numbers of two bytes, or the bytes of a text.
#include <algorithm>

#include "runtime/data/source.h"

namespace gacc {

Result<TokenWindows> cut_tokens(int64_t bytes, std::string_view name, std::string_view dtype,
                                std::string_view split, int64_t length, std::optional<int64_t> limit) {
  const int64_t each = element_bytes(dtype);
  if (bytes % each != 0)
    return Status::error("{}: has {}, but its tokens have {} each", name, counted(bytes, "byte"),
                         counted(each, "byte"));
  int64_t tokens = bytes / each;
  const int64_t cut = tokens / 10 * 9 + tokens % 10 * 9 / 10;
  const int64_t first = split == "test" ? cut : 0;
  if (!split.empty()) tokens = split == "test" ? tokens - cut : cut;
  if (tokens - 1 < length)
    return Status::error("{}: {} {}; one sample takes {}, and one more for the last target", name,
                         split.empty()      ? "holds"
                         : split == "train" ? "the first 90 % are"
                                            : "the last 10 % are",
                         counted(tokens, "token"), length);
  return TokenWindows{.windows = std::min((tokens - 1) / length, limit.value_or(tokens)),
                      .first = static_cast<size_t>(first * each)};
}

// No sniffing for gzip here: any two bytes may be a token.
Status DataReader::read_windows(std::string_view dtype) {
  const auto inputs = GACC_TRY(token_inputs());
  const int64_t length = plan.inputs[inputs[0]].shape[0];
  const std::string_view split = spec.option("split");
  const bool zipped = spec.path.ends_with(".gz");
  const SharedFile file = GACC_TRY(zipped ? read_unzipped(spec.path) : FileBytes::open(spec.path));
  const auto size = static_cast<int64_t>(file->text().size());
  const TokenWindows cut = GACC_TRY(cut_tokens(size, spec.path, dtype, split, length, spec.limit));
  for (const int64_t later : {0, 1}) {
    const size_t begin = cut.first + static_cast<size_t>(later * element_bytes(dtype));
    give(inputs[static_cast<size_t>(later)], spec.path,
         {std::string(dtype), {cut.windows, length}, {}, file, begin},
         [path = spec.path, later, test = split == "test"](int64_t element) {
           return fmt::format("{}: token {}{}", path, element + later, test ? " of the last 10 %" : "");
         });
  }
  return {};
}

const DataSource sources::tokens{
    .name = "tokens",
    .path = "FILE",
    .says = "little-endian u16 tokens, cut into windows",
    .read = [](DataReader& r) { return r.read_windows("u16"); },
};

const DataSource sources::text{
    .name = "text",
    .path = "FILE",
    .says = "bytes as tokens, cut into windows",
    .keys = {{"split", "train|test", "",
              "`train` is the first 90 % of the file, `test` the rest (default: all)"}},
    .read = [](DataReader& r) { return r.read_windows("u8"); },
};

}  // namespace gacc
