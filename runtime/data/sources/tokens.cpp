// Files of tokens: numbers of two or four bytes, or the bytes of a text.
#include <algorithm>
#include <cstring>

#include "runtime/byte_order.h"
#include "runtime/data/source.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr size_t kLooked = size_t{1} << 16;  // bytes of a file that are looked at

// The first bytes of files of other formats.
const struct {
  std::string_view begin, what, instead;
} kFormats[] = {{"\x93NUMPY", "a NumPy array", "npy: reads it, with windows of the input's length"},
                {"PK\3\4", "a zip file, such as .npz or PyTorch's .pt", "npz: reads arrays of windows"},
                {"GGUF", "a GGUF file of weights", "--load takes weights"},
                {"\x89HDF\r\n", "an HDF5 file", "npy: takes arrays"},
                {"PAR1", "a Parquet file", "npy: takes arrays"},
                {"ARROW1", "an Arrow file", "npy: takes arrays"},
                {"%PDF-", "a PDF file", "text: takes plain text"},
                {"\xfd"
                 "7zXZ",
                 "compressed by xz", "unpack it"},
                {"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it"},
                {"\x80\x04\x95", "a pickle of Python", "npy: takes arrays"}};

// A number of bytes, and that many bytes of JSON.
bool is_safetensors(std::string_view text) {
  return text.size() > 9 && text[8] == '{' && read_little<uint64_t>(text.data()) < text.size() &&
         read_little<uint64_t>(text.data()) > 0;
}

// UTF-8 without control characters; the last letter may be cut.
bool is_text(std::string_view text) {
  constexpr size_t kFew = 16;  // bytes, which may be tokens by chance
  if (text.size() < kFew) return false;
  size_t more = 0;  // bytes of a letter that are still to come
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte >= ' ' && byte < 0x7f) || byte == '\n' || byte == '\r' || byte == '\t';
    const bool goes_on = byte >= 0x80 && byte < 0xc0;
    if (more > 0 ? !goes_on : !plain && (byte < 0xc2 || byte > 0xf4)) return false;
    if (more > 0)
      --more;
    else if (!plain)
      more = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  }
  return true;
}

// Returns whether every second number looks like the upper half of an id, and most of the others do not: ids are wider
// than Number.
template <class Number>
bool is_wider(std::string_view text, int64_t vocabulary) {
  constexpr size_t kFew = 8;
  const int64_t most = std::max<int64_t>(vocabulary - 1, 0) >> (8 * sizeof(Number));
  const size_t numbers = text.size() / sizeof(Number);
  size_t upper[2] = {};
  for (size_t i = 0; i < numbers; ++i)
    upper[i % 2] += read_little<Number>(text.data() + sizeof(Number) * i) <= most ? 1 : 0;
  return numbers >= 2 * kFew && upper[1] == numbers / 2 && upper[0] < numbers / 8 * 3;
}

}  // namespace

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

// Checks that the bytes are tokens of that type for the input, as far as they show it.
Status DataReader::check_format(std::string_view text, std::string_view dtype, const PlanInput& tokens) {
  const std::string& path = spec.path;
  const int64_t vocabulary = tokens.range.value_or(0);
  for (const auto& [begin, what, instead] : kFormats)
    if (text.starts_with(begin)) return Status::error("{}: is {}, no tokens; {}", path, what, instead);
  if (is_safetensors(text))
    return Status::error("{}: is a safetensors file, no tokens; --load takes weights", path);
  if (dtype == "u8") {
    if (vocabulary <= 256) return {};
    return Status::error(
        "{}: text: gives bytes, 0 to 255, and the input {} takes {} tokens; tokens: reads what a "
        "tokenizer makes of the text",
        path, in_quotes(tokens.name), vocabulary);
  }
  const std::string_view some = text.substr(0, kLooked);
  if (is_text(some))
    return Status::error(
        "{}: is a text, no tokens; text: takes bytes as tokens, and a tokenizer makes a file of numbers",
        path);
  if (dtype != "u16") {
    if (!is_wider<uint32_t>(some, vocabulary)) return {};
    return Status::error(
        "{}: every second number is 0, the upper half of a token: they have eight bytes, and dtype=u32 reads "
        "four (in numpy: ids.astype(\"uint32\").tofile)",
        path);
  }
  if (is_wider<uint16_t>(some, vocabulary))
    return Status::error(
        "{}: every second number is no token but the upper half of one: they have four bytes or eight, "
        "and tokens: reads two; dtype=u32 reads four (in numpy: ids.astype(\"uint16\").tofile)",
        path);
  if (vocabulary > 65536)
    remark(fmt::format(
        "warning: {}: tokens of two bytes are 0 to 65535, and the input {} takes {}; dtype=u32 reads "
        "four bytes",
        path, in_quotes(tokens.name), vocabulary));
  return {};
}

// The token that ends a document belongs to none: it has the next document's first token as its target.
Result<Array> DataReader::documents(const TokenWindows& windows, const FileBytes& file,
                                    std::string_view dtype, int64_t length) const {
  int64_t end = 0;
  if (!parse_count(spec.option("end"), end))
    return Status::error("{}: end={} is no number of a token", spec.path, spec.option("end"));
  Array made{"i32", {windows.windows, length}, {}};
  made.bytes.resize(static_cast<size_t>(windows.windows * length) * sizeof(int32_t));
  std::vector<std::byte> window(static_cast<size_t>(length * element_bytes(dtype)));
  std::byte* to = made.bytes.data();
  int64_t ends = 0;
  for (int64_t i = 0; i < windows.windows; ++i) {
    GACC_TRY(file.read(windows.first + static_cast<size_t>(i) * window.size(), window));
    int32_t document = 0;
    visit_elements(dtype, window, [&](const auto& tokens) {
      for (const auto token : tokens) {
        const bool last = static_cast<int64_t>(token) == end;
        const int32_t number = last ? -1 : document;
        ends += last ? 1 : 0, document += last ? 1 : 0;
        std::memcpy(to, &number, sizeof number);
        to += sizeof number;
      }
    });
  }
  if (ends == 0) return Status::error("{}: no token is {}: nothing would end a document", spec.path, end);
  return made;
}

// No sniffing for gzip here: any two bytes may be a token.
Status DataReader::read_windows(std::string_view dtype) {
  const auto inputs = GACC_TRY(token_inputs());
  const int64_t length = plan.inputs[inputs[0]].shape[0];
  const std::string_view split = spec.option("split");
  const bool zipped = spec.path.ends_with(".gz");
  const SharedFile file = GACC_TRY(zipped ? read_unzipped(spec.path) : FileBytes::open(spec.path));
  const auto size = static_cast<int64_t>(file->text().size());
  GACC_TRY(check_format(file->text(), dtype, plan.inputs[inputs[0]]));
  const TokenWindows cut = GACC_TRY(cut_tokens(size, spec.path, dtype, split, length, spec.limit));
  for (const int64_t later : {0, 1}) {
    const size_t begin = cut.first + static_cast<size_t>(later * element_bytes(dtype));
    give(inputs[static_cast<size_t>(later)], spec.path,
         {std::string(dtype), {cut.windows, length}, {}, file, begin},
         [path = spec.path, later, test = split == "test"](int64_t element) {
           return fmt::format("{}: token {}{}", path, element + later, test ? " of the last 10 %" : "");
         });
  }
  if (inputs.size() > 2) give(inputs[2], spec.path, GACC_TRY(documents(cut, *file, dtype, length)));
  return {};
}

const SpecKey kEnd = {
    "end", "ID", "",
    "the token that ends a document: gives a third i32 input the number of each position's document"};

const DataSource sources::tokens{
    .name = "tokens",
    .path = "FILE",
    .says = "little-endian tokens, cut into windows",
    .keys = {{"dtype", "u16|u32", "u16", "the type of a token"}, kEnd},
    .read =
        [](DataReader& r) {
          // Beyond 2^31 - 1 there is no token: as i32 it is below every range.
          return r.read_windows(r.spec.option("dtype") == "u32" ? "i32" : "u16");
        },
};

const DataSource sources::text{
    .name = "text",
    .path = "FILE",
    .says = "bytes as tokens, cut into windows",
    .keys = {{"split", "train|test", "",
              "`train` is the first 90 % of the file, `test` the rest (default: all)"},
             kEnd},
    .read = [](DataReader& r) { return r.read_windows("u8"); },
};

}  // namespace gacc
