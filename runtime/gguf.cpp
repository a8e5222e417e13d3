#include "runtime/gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <type_traits>

#include "runtime/blocks.h"
#include "runtime/byte_order.h"
#include "runtime/half.h"
#include "runtime/json_text.h"

namespace gacc {
namespace {

constexpr uint64_t kMostKey = 65535;                 // bytes of a key: the format's limit
constexpr uint64_t kMostName = 65535;                // likewise of a tensor's name
constexpr uint32_t kMostAxes = 4, kLeastPlaces = 8;  // axes of a tensor, the smallest alignment
constexpr uint64_t kUsualAlignment = 32, kMostAlignment = uint64_t{1} << 20;
constexpr uint64_t kMostElements = uint64_t{1} << 46;
constexpr uint64_t kMostShown = 4096;  // entries of an array as JSON
constexpr std::string_view kAlignment = "general.alignment";

// The form of a number of metadata in the file; without bytes it is no number, and has a length of its own.
struct NumberForm {
  uint64_t bytes = 0;
  double (*read)(std::string_view bytes) = nullptr;
};
template <class T>
constexpr NumberForm number_form() {
  if constexpr (std::is_void_v<T>)
    return {};
  else
    return {sizeof(T),
            [](std::string_view bytes) { return static_cast<double>(read_little<T>(bytes.data())); }};
}
template <class... T>
constexpr std::array<NumberForm, sizeof...(T)> kFormsOf = {number_form<T>()...};
constexpr auto kForms = kFormsOf<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, uint8_t, void,
                                 void, uint64_t, int64_t, double>;
constexpr uint32_t kTypes = std::size(kForms);

const NumberForm& form_of(GgufType type) { return kForms[static_cast<uint32_t>(type)]; }

// Types of tensors by their numbers; "" was taken back. `numbers` in `bytes` are known of those that are read.
constexpr std::string_view kNames[] = {
    "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};
constexpr std::string_view kReadable = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K";

struct Layout {
  uint64_t numbers, bytes;
};
std::optional<Layout> layout_of(std::string_view type) {
  if (type == "F32") return Layout{1, 4};
  if (type == "F16" || type == "BF16") return Layout{1, 2};
  const BlockFormat* format = block_format(type);
  if (format == nullptr) return std::nullopt;
  return Layout{static_cast<uint64_t>(format->numbers), static_cast<uint64_t>(format->bytes)};
}

// Takes numbers and texts off the front of a file. What is cut off is noted once, with its place.
class Bytes {
 public:
  Bytes(std::string_view all, std::string_view file) : all_(all), file_(file) {}
  uint64_t at() const { return at_; }
  uint64_t left() const { return all_.size() - at_; }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  template <class... A>
  void fail(fmt::format_string<A...> format, A&&... args) {
    if (status_)
      status_ = Status::error("{}: byte {}: {}", file_, at_, fmt::format(format, std::forward<A>(args)...));
  }
  std::string_view take(uint64_t size, std::string_view what) {
    if (size > left())
      fail("the file ends in {}, which would have {} of the {} that are left", what,
           counted(static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX)), "byte"), left());
    if (!ok()) return {};
    at_ += size;
    return all_.substr(at_ - size, size);
  }
  template <class T>
  T number(std::string_view what) {
    const std::string_view bytes = take(sizeof(T), what);
    return bytes.empty() ? T() : read_little<T>(bytes.data());
  }
  std::string_view text(std::string_view what, uint64_t most = UINT64_MAX) {
    const auto length = number<uint64_t>(what);
    if (length > most) fail("{} would have {} bytes; at most {} are right", what, length, most);
    return take(length, what);
  }
  void skip_to_multiple(uint64_t step) {
    at_ = std::min<uint64_t>((at_ + step - 1) / step * step, all_.size());
  }

 private:
  const std::string_view all_, file_;
  uint64_t at_ = 0;
  Status status_;
};

// Moves past a value, all of whose lengths are checked.
void take_value(Bytes& bytes, GgufType type, uint64_t count, const std::string& what) {
  const uint64_t each = form_of(type).bytes;
  if (each == 0) {
    // Each has a length of eight bytes at least: a count beyond the file ends at once.
    for (uint64_t i = 0; i < count && bytes.ok(); ++i) bytes.text(what);
    return;
  }
  if (count > bytes.left() / each)
    return bytes.fail("{} has {} entries of {} bytes, and {} bytes are left", what, count, each,
                      bytes.left());
  const std::string_view values = bytes.take(count * each, what);
  if (type == GgufType::boolean && values.find_first_not_of(std::string_view("\0\1", 2)) != values.npos)
    bytes.fail("{} is neither true (1) nor false (0)", what);
}

GgufEntry take_entry(Bytes& bytes, std::string_view all) {
  GgufEntry entry;
  entry.key = bytes.text("a key of the metadata", kMostKey);
  const std::string what = fmt::format("the value of {}", shown_name(entry.key));
  const auto take_type = [&](std::string_view of) {
    const auto type = bytes.number<uint32_t>(what);
    if (type >= kTypes) bytes.fail("{}{} has the type {}; there are 0 to {}", what, of, type, kTypes - 1);
    return bytes.ok() ? static_cast<GgufType>(type) : GgufType::u8;
  };
  entry.type = take_type("");
  if (entry.key.empty()) bytes.fail("a key of the metadata is empty");
  if (entry.type == GgufType::array) {
    entry.of = take_type(", an array,");
    if (entry.of == GgufType::array) bytes.fail("{} is an array of arrays, which is not known here", what);
    entry.count = bytes.number<uint64_t>(what);
  }
  const uint64_t begin = bytes.at();
  if (bytes.ok()) take_value(bytes, entry.type == GgufType::array ? entry.of : entry.type, entry.count, what);
  entry.bytes = all.substr(begin, bytes.at() - begin);
  return entry;
}

// A tensor whose offset is still counted from the first one.
GgufTensor take_tensor(Bytes& bytes) {
  GgufTensor tensor;
  tensor.name = bytes.text("a tensor's name", kMostName);
  const std::string what = fmt::format("the tensor {}", shown_name(tensor.name));
  const auto axes = bytes.number<uint32_t>(what);
  if (axes == 0 || axes > kMostAxes) bytes.fail("{} has {} axes; there are 1 to {}", what, axes, kMostAxes);
  uint64_t elements = 1;
  for (uint32_t axis = 0; axis < axes && bytes.ok(); ++axis) {
    const auto extent = bytes.number<uint64_t>(what);
    if (bytes.ok() && (extent == 0 || extent > kMostElements / elements))
      bytes.fail("{} has an axis of {}; all its numbers together are 1 to {}", what, extent, kMostElements);
    if (!bytes.ok()) break;
    elements *= extent;
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  const auto type = bytes.number<uint32_t>(what);
  tensor.begin = bytes.number<uint64_t>(what);
  if (!bytes.ok()) return tensor;
  tensor.type =
      type < std::size(kNames) && !kNames[type].empty() ? kNames[type] : fmt::format("of number {}", type);
  const std::optional<Layout> layout = layout_of(tensor.type);
  if (!layout) {
    bytes.fail("{} has the type {}; known are {}", what, tensor.type, kReadable);
  } else if (static_cast<uint64_t>(tensor.shape.back()) % layout->numbers != 0) {
    bytes.fail("{} has rows of {} numbers, and {} has blocks of {}", what, tensor.shape.back(), tensor.type,
               layout->numbers);
  } else {
    tensor.size = elements / layout->numbers * layout->bytes;
  }
  return tensor;
}

std::string json_of_one(GgufType type, std::string_view bytes) {
  if (type == GgufType::text) return json_text(nlohmann::json(std::string(bytes.substr(8))));
  if (type == GgufType::boolean) return bytes[0] != 0 ? "true" : "false";
  if (type == GgufType::u64) return fmt::to_string(read_little<uint64_t>(bytes.data()));
  if (type == GgufType::i64) return fmt::to_string(read_little<int64_t>(bytes.data()));
  const double number = form_of(type).read(bytes);
  if (!std::isfinite(number)) return "null";
  // The shortest text of an f32: 1e-05, and not its double.
  const std::string text =
      type == GgufType::f32 ? fmt::format("{}", static_cast<float>(number)) : fmt::format("{}", number);
  const bool real = type == GgufType::f32 || type == GgufType::f64;
  return text + (real && text.find_first_of(".e") == text.npos ? ".0" : "");
}

void append(std::string& to, const auto& number) { to += bytes_of(number); }
void append_text(std::string& to, std::string_view text) {
  append(to, uint64_t{text.size()});
  to += text;
}

uint64_t size_of_text(std::string_view bytes) { return 8 + read_little<uint64_t>(bytes.data()); }

}  // namespace

std::optional<double> GgufEntry::number() const {
  if (type == GgufType::text || type == GgufType::array) return std::nullopt;
  return form_of(type).read(bytes);
}

std::optional<std::string_view> GgufEntry::text() const {
  return type == GgufType::text ? std::optional(bytes.substr(8)) : std::nullopt;
}

std::string json_of(const GgufEntry& entry) {
  if (entry.type != GgufType::array) return json_of_one(entry.type, entry.bytes);
  if (entry.count > kMostShown) return "null";
  std::vector<std::string> all;
  std::string_view left = entry.bytes;
  for (uint64_t i = 0; i < entry.count; ++i) {
    const uint64_t size = entry.of == GgufType::text ? size_of_text(left) : form_of(entry.of).bytes;
    all.push_back(json_of_one(entry.of, left.substr(0, size)));
    left.remove_prefix(size);
  }
  return fmt::format("[{}]", fmt::join(all, ", "));
}

const GgufEntry* Gguf::find(std::string_view key) const {
  const auto found = std::ranges::find(metadata, key, &GgufEntry::key);
  return found == metadata.end() ? nullptr : &*found;
}
std::optional<double> Gguf::number(std::string_view key) const {
  const GgufEntry* entry = find(key);
  return entry == nullptr ? std::nullopt : entry->number();
}
std::optional<std::string_view> Gguf::text(std::string_view key) const {
  const GgufEntry* entry = find(key);
  return entry == nullptr ? std::nullopt : entry->text();
}

Status parse_gguf(std::string_view all, std::string_view file, Gguf& to) {
  to = Gguf();
  // 1. The header.
  Bytes bytes(all, file);
  if (bytes.take(kGgufMagic.size(), "its first four bytes") != kGgufMagic && bytes.ok())
    return Status::error("{}: is no GGUF: it does not begin with \"GGUF\"", file);
  const auto version = bytes.number<uint32_t>("its version");
  if (bytes.ok() && version != 2 && version != 3)
    return Status::error(
        "{}: is a GGUF of version {}{}; versions 2 and 3 are read", file, version,
        version == 2u << 24 || version == 3u << 24 ? ", with its bytes in the other order" : "");
  const auto tensors = bytes.number<uint64_t>("its number of tensors");
  const auto entries = bytes.number<uint64_t>("its number of metadata");
  if (bytes.ok() && (tensors > bytes.left() / 24 || entries > bytes.left() / 13))
    bytes.fail("{} tensors and {} metadata cannot be in the {} bytes that are left", tensors, entries,
               bytes.left());

  // 2. Metadata.
  std::set<std::string_view> keys;
  to.metadata.reserve(bytes.ok() ? entries : 0);
  for (uint64_t i = 0; i < entries && bytes.ok(); ++i) {
    to.metadata.push_back(take_entry(bytes, all));
    if (bytes.ok() && !keys.insert(to.metadata.back().key).second)
      bytes.fail("the key {} is there twice", shown_name(to.metadata.back().key));
  }
  uint64_t alignment = kUsualAlignment;
  if (const GgufEntry* said = bytes.ok() ? to.find(kAlignment) : nullptr) {
    alignment = said->type == GgufType::u32 ? read_little<uint32_t>(said->bytes.data()) : 0;
    if (!std::has_single_bit(alignment) || alignment < kLeastPlaces || alignment > kMostAlignment)
      bytes.fail("{} is {}; it is a u32, a power of two from {} to {}", kAlignment, json_of(*said),
                 kLeastPlaces, kMostAlignment);
  }
  if (const std::optional<double> parts = bytes.ok() ? to.number("split.count") : std::nullopt;
      parts && *parts > 1)
    bytes.fail("it is one of {} parts of a model; llama-gguf-split --merge makes one file of them", *parts);

  // 3. Tensors, one behind the other.
  std::set<std::string_view> names;
  to.tensors.reserve(bytes.ok() ? tensors : 0);
  uint64_t next = 0;
  for (uint64_t i = 0; i < tensors && bytes.ok(); ++i) {
    GgufTensor& tensor = to.tensors.emplace_back(take_tensor(bytes));
    if (!bytes.ok()) break;
    if (!names.insert(tensor.name).second) bytes.fail("there are two tensors {}", shown_name(tensor.name));
    if (tensor.begin != next)
      bytes.fail("the tensor {} begins at {} of the data; behind the one before, at a multiple of {}, is {}",
                 shown_name(tensor.name), tensor.begin, alignment, next);
    next = (next + tensor.size + alignment - 1) / alignment * alignment;
  }
  if (!bytes.ok()) return bytes.status();
  bytes.skip_to_multiple(alignment);
  const uint64_t data = bytes.at(), left = bytes.left();
  for (GgufTensor& tensor : to.tensors) {
    if (tensor.begin > left || tensor.size > left - tensor.begin)
      return Status::error("{}: the tensor {} would end at byte {}, and the file has {}: it is cut off", file,
                           shown_name(tensor.name), data + tensor.begin + tensor.size, all.size());
    tensor.begin += data;
  }
  if (left > next)
    return Status::error("{}: has {} after its last tensor", file,
                         counted(static_cast<int64_t>(left - next), "byte"));
  return {};
}

bool is_writable_in_gguf(std::string_view type) {
  return type == "F32" || type == "F16" || type == "BF16" || type == "Q8_0";
}

Result<std::string> gguf_data(std::string_view type, std::span<const float> numbers,
                              std::string_view tensor) {
  std::string data(numbers.size_bytes(), '\0');
  if (type == "F32") {
    std::memcpy(data.data(), numbers.data(), data.size());
  } else if (const BlockFormat* format = block_format(type)) {
    data.resize(numbers.size() / static_cast<size_t>(format->numbers) * static_cast<size_t>(format->bytes));
    GACC_TRY(quantize(*format, numbers, reinterpret_cast<std::byte*>(data.data()), tensor));
  } else {
    data.resize(numbers.size() * 2);
    std::vector<uint16_t> halves;
    round_to_half(std::as_bytes(numbers), half_type(type), halves);
    std::memcpy(data.data(), halves.data(), data.size());
    for (size_t i = 0; i < halves.size(); ++i)
      if (float wide = 0; widen(half_type(type), &halves[i], &wide, 1), !std::isfinite(wide))
        return Status::error("tensor {} cannot be {}: its number {} is {}, which is beyond that type",
                             shown_name(tensor), type, i, numbers[i]);
  }
  return data;
}

void GgufMetadata::add(std::string_view key, std::string_view text) {
  append_text(bytes_, key);
  append(bytes_, GgufType::text);
  append_text(bytes_, text);
  ++count_;
}

void GgufMetadata::add(std::string_view key, float number) {
  append_text(bytes_, key);
  append(bytes_, GgufType::f32);
  append(bytes_, number);
  ++count_;
}

std::string gguf_bytes(const GgufMetadata& metadata, const std::vector<GgufOutput>& tensors) {
  const auto pad = [](std::string& text) {
    text.resize((text.size() + kUsualAlignment - 1) / kUsualAlignment * kUsualAlignment, '\0');
  };
  std::string bytes(kGgufMagic), data;
  append(bytes, uint32_t{3});
  append(bytes, static_cast<uint64_t>(tensors.size()));
  append(bytes, metadata.count());
  bytes += metadata.bytes();
  for (const GgufOutput& tensor : tensors) {
    append_text(bytes, tensor.name);
    append(bytes, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t axis = tensor.shape.size(); axis-- > 0;)
      append(bytes, static_cast<uint64_t>(tensor.shape[axis]));
    append(bytes, static_cast<uint32_t>(std::ranges::find(kNames, tensor.type) - std::begin(kNames)));
    append(bytes, static_cast<uint64_t>(data.size()));
    data += tensor.data;
    pad(data);
  }
  pad(bytes);
  return bytes + data;
}

}  // namespace gacc
