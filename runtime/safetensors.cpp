// The header is read by events, without building a JSON tree: it has one form only, so that anything deeper,
// doubled or of another type is refused where it occurs.
#include "runtime/safetensors.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/blocks.h"
#include "runtime/byte_order.h"
#include "runtime/half.h"
#include "runtime/json_text.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr uint64_t kMostHeader = 100'000'000;  // bytes: the limit of the format's own library
constexpr size_t kMaxRank = 16;

struct Entry {
  std::string name, dtype;
  std::vector<uint64_t> shape, offsets;
  std::set<std::string> keys{};
};

// Takes {"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ...}; "__metadata__" may hold
// any flat object. Every handler returns false, with `problem` set, to end the reading.
class Header final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  Metadata metadata;
  std::string problem;

  bool start_object(size_t) override {
    if (depth_ == 1 && key_ == "__metadata__") in_metadata_ = true;
    if (depth_ == 1 && !in_metadata_) entries.emplace_back().name = key_;
    if (depth_ >= 2 || in_array_) return fail("is nested too deeply");
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) {
      const Entry& entry = entries.back();
      if (entry.keys.size() < 3)
        return fail(
            fmt::format("lacks dtype, shape or data_offsets for the tensor {}", shown_name(entry.name)));
    }
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool key(std::string& name) override {
    key_ = name;
    if (depth_ != 2 || in_metadata_) return true;
    Entry& entry = entries.back();
    if (name != "dtype" && name != "shape" && name != "data_offsets")
      return fail(
          fmt::format("has an unknown key {} at the tensor {}", shown_name(name), shown_name(entry.name)));
    if (!entry.keys.insert(name).second)
      return fail(fmt::format("has {} twice at the tensor {}", shown_name(name), shown_name(entry.name)));
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ != 2 || in_array_ || in_metadata_ || (key_ != "shape" && key_ != "data_offsets"))
      return misplaced("a list");
    return in_array_ = true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (!in_array_) return in_metadata_ || misplaced("a number");
    std::vector<uint64_t>& list = key_ == "shape" ? entries.back().shape : entries.back().offsets;
    if (list.size() == kMaxRank)
      return fail(fmt::format("has too long a list at the tensor {}", shown_name(entries.back().name)));
    list.push_back(value);
    return true;
  }
  bool string(std::string& value) override {
    if (in_metadata_ && depth_ == 2) {
      metadata[key_] = value;
      return true;
    }
    if (depth_ != 2 || in_array_ || key_ != "dtype") return misplaced("a string");
    entries.back().dtype = value;
    return true;
  }
  bool number_integer(int64_t) override { return in_metadata_ || misplaced("a negative number"); }
  bool number_float(double, const std::string&) override { return in_metadata_ || misplaced("a fraction"); }
  bool null() override { return in_metadata_ || misplaced("null"); }
  bool boolean(bool) override { return in_metadata_ || misplaced("true or false"); }
  bool binary(nlohmann::json::binary_t&) override { return misplaced("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(fmt::format("is no valid JSON near its byte {}", position));
  }

 private:
  bool fail(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  bool misplaced(std::string_view what) {
    if (key_.empty()) return fail(fmt::format("has {} where the list of tensors should be", what));
    return fail(fmt::format("has {} where it does not belong, at {}", what, shown_name(key_)));
  }

  int depth_ = 0;
  bool in_array_ = false, in_metadata_ = false;
  std::string key_;
};

// Files that people give for parameters and that are none, by their first bytes. As a length of a header, each would be
// beyond the format's limit.
constexpr std::string_view kTorch =
    "a torch.save file; write it as safetensors: safetensors.torch.save_file(model.state_dict(), FILE)";
constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
    {"PK\x03\x04", kTorch},
    {"\x80\x02\x8a\x0a", kTorch},
    {kCheckpointMagic, "a checkpoint, not parameters alone; go on from it with --checkpoint FOLDER --resume"},
    {kArtifactMagic, "an artifact; it is gacc-exec's first argument"},
    {"\x93NUMPY", "a NumPy array; parameters are safetensors"},
    {"\x89HDF\r\n", "an HDF5 file; parameters are safetensors"},
    {"\x1f\x8b", "compressed with gzip; unpack it first"},
    {"version https://git-lfs",
     "a pointer of git-lfs, which stands for the weights: `git lfs pull` fetches them"},
};

int64_t stored_bytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, int64_t> kTypes[] = {
      {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I64", 8},  {"I32", 4},     {"I16", 2},    {"I8", 1},
      {"U64", 8}, {"U32", 4}, {"U16", 2},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, bytes] : kTypes)
    if (name == dtype) return bytes;
  return 0;
}

// Elements of the tensor, or -1 when the product exceeds what a file can hold.
int64_t element_count(const std::vector<uint64_t>& shape) {
  constexpr uint64_t kMost = uint64_t{1} << 46;
  if (std::ranges::find(shape, 0u) != shape.end()) return 0;
  uint64_t product = 1;
  for (const uint64_t extent : shape) {
    if (extent > kMost / product) return -1;
    product *= extent;
  }
  return static_cast<int64_t>(product);
}

using Writer = std::function<Status(std::string_view)>;

// Hands the numbers of a tensor to `write`, rounded to a half type.
Status write_halves(const std::string& path, const NamedTensor& tensor, std::string_view dtype,
                    const Writer& write) {
  constexpr size_t kBlock = size_t{1} << 20;
  const HalfType type = half_type(dtype);
  const uint16_t infinite = type == HalfType::f16 ? 0x7c00 : 0x7f80;
  const std::span<const float> all = tensor.data;
  std::vector<uint16_t> halves;
  for (size_t first = 0; first < all.size(); first += kBlock) {
    const std::span<const float> some = all.subspan(first, std::min(kBlock, all.size() - first));
    round_to_half(std::as_bytes(some), type, halves);
    for (size_t i = 0; i < some.size(); ++i)
      if ((halves[i] & infinite) == infinite)
        return Status::error(
            "cannot write {}: tensor {} holds {} at {}, which is beyond {}; f32 has room for it", path,
            shown_name(tensor.name), some[i], index_text(tensor.shape, static_cast<int64_t>(first + i)),
            type == HalfType::f16 ? "f16" : "bf16");
    GACC_TRY(write(bytes_of(std::span(halves))));
  }
  return {};
}

// Hands the file to `write`, piece by piece.
Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                         const Metadata& metadata, std::string_view dtype, const Writer& write) {
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, [](const NamedTensor* tensor) -> std::string_view { return tensor->name; });
  Metadata notes = metadata;
  notes["format"] = "pt";
  std::string header = "{\"__metadata__\":" + json_text(nlohmann::json(notes));
  uint64_t offset = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const NamedTensor& tensor = *sorted[i];
    const std::vector<uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
    if (element_count(shape) != static_cast<int64_t>(tensor.data.size()))
      return Status::error("cannot write {}: tensor {} of shape [{}] has {} elements", path,
                           shown_name(tensor.name), fmt::join(tensor.shape, ", "), tensor.data.size());
    if (tensor.name == "__metadata__" || (i > 0 && sorted[i - 1]->name == tensor.name))
      return Status::error("cannot write {}: no tensor can be called {}{}", path, shown_name(tensor.name),
                           i > 0 && sorted[i - 1]->name == tensor.name ? " twice" : "");
    const uint64_t end = offset + tensor.data.size() * static_cast<uint64_t>(stored_bytes(dtype));
    header +=
        fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                    json_text(nlohmann::json(tensor.name)), dtype, fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  header.insert(0, bytes_of(uint64_t{header.size()}));
  GACC_TRY(write(header));
  for (const NamedTensor* tensor : sorted) {
    GACC_TRY(dtype == "F32" ? write(bytes_of(std::span(tensor->data)))
                            : write_halves(path, *tensor, dtype, write));
  }
  return {};
}

}  // namespace

std::string shown_name(std::string_view name) {
  constexpr size_t kMost = 80;
  const std::string text = json_text(nlohmann::json(name.substr(0, kMost)));
  return name.size() > kMost ? text + "..." : text;
}

bool StoredTensor::is_real() const {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16" || block_format(dtype) != nullptr;
}

std::string stored_dtype(std::string_view type) {
  std::string name(type);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

int64_t elements_of(const StoredTensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.bytes.size());
  if (const BlockFormat* format = block_format(tensor.dtype)) return bytes / format->bytes * format->numbers;
  return bytes / stored_bytes(tensor.dtype);
}

void read_elements(const StoredTensor& tensor, int64_t first, std::span<float> to) {
  if (to.empty()) return;
  if (const BlockFormat* format = block_format(tensor.dtype))
    return dequantize(*format, reinterpret_cast<const std::byte*>(tensor.bytes.data()), first, to);
  const char* from = tensor.bytes.data() + first * stored_bytes(tensor.dtype);
  if (tensor.dtype == "F32")
    std::memcpy(to.data(), from, to.size_bytes());
  else
    widen(half_type(tensor.dtype), from, to.data(), static_cast<int64_t>(to.size()));
}

namespace {

// Says whether all numbers of these bytes are finite; `exponent`: the bits that infinities and NaNs have all set.
template <class Word, Word exponent>
bool all_finite(std::string_view bytes) {
  Word words[1024];  // a fixed number, of which the compiler makes vectors
  while (!bytes.empty()) {
    const size_t some = std::min(bytes.size(), sizeof words);
    if (some < sizeof words) std::ranges::fill(words, Word{0});
    std::memcpy(words, bytes.data(), some);
    Word wrong = 0;
    for (const Word word : words) wrong |= static_cast<Word>((word & exponent) == exponent);
    if (wrong != 0) return false;
    bytes.remove_prefix(some);
  }
  return true;
}

bool all_finite(const StoredTensor& tensor) {
  if (const BlockFormat* format = block_format(tensor.dtype)) return all_finite(*format, tensor.bytes);
  if (tensor.dtype == "F32") return all_finite<uint32_t, 0x7f800000>(tensor.bytes);
  return half_type(tensor.dtype) == HalfType::f16 ? all_finite<uint16_t, 0x7c00>(tensor.bytes)
                                                  : all_finite<uint16_t, 0x7f80>(tensor.bytes);
}

}  // namespace

Status check_finite(const StoredTensor& tensor, std::string_view file) {
  if (all_finite(tensor)) return {};
  std::vector<float> block(std::min<size_t>(static_cast<size_t>(elements_of(tensor)), size_t{1} << 16));
  for (int64_t first = 0, left = elements_of(tensor); left > 0;) {
    const std::span<float> part(block.data(), std::min(block.size(), static_cast<size_t>(left)));
    read_elements(tensor, first, part);
    const auto wrong = std::ranges::find_if_not(part, [](float value) { return std::isfinite(value); });
    if (wrong != part.end())
      return Status::error("{}: tensor {} holds {} at {}; a parameter is a finite number", file,
                           shown_name(tensor.name), *wrong,
                           index_text(tensor.shape, first + (wrong - part.begin())));
    first += static_cast<int64_t>(part.size());
    left -= static_cast<int64_t>(part.size());
  }
  return {};
}

Status parse_stored(std::string_view bytes, std::string_view name, std::vector<StoredTensor>& tensors,
                    Metadata* metadata) {
  tensors.clear();
  // 1. The header.
  if (name.ends_with(".npz"))
    return Status::error(
        "{}: is a .npz file; parameters are safetensors: safetensors.numpy.save_file(dict(numpy.load(FILE)), "
        "OUT)",
        name);
  for (const auto& [begin, what] : kOthers)
    if (bytes.starts_with(begin)) return Status::error("{}: is {}", name, what);
  if (bytes.size() < 8)
    return Status::error("{}: is no safetensors file: it has {}, the length of its header alone takes 8",
                         name, counted(bytes.size(), "byte"));
  auto length = read_little<uint64_t>(bytes.data());
  if (length > kMostHeader || length > bytes.size() - 8)
    return Status::error(
        "{}: is no safetensors file or is cut off: its header would have {} bytes, {} are there", name,
        length, bytes.size() - 8);
  const std::string_view text = bytes.substr(8, length), data = bytes.substr(8 + length);
  if (!text.starts_with('{'))
    return Status::error("{}: is no safetensors file: its header does not begin with {{", name);
  Header header;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &header))
    return Status::error("{}: its header {}", name, header.problem.empty() ? "is damaged" : header.problem);

  if (metadata) *metadata = std::move(header.metadata);

  // 2. Every tensor for itself.
  std::vector<Entry>& entries = header.entries;
  for (const Entry& entry : entries) {
    const int64_t each = stored_bytes(entry.dtype), elements = element_count(entry.shape);
    if (each == 0)
      return Status::error("{}: tensor {} has the type {}; known are F32, F16 and BF16", name,
                           shown_name(entry.name), shown_name(entry.dtype));
    if (entry.offsets.size() != 2 || entry.offsets[0] > entry.offsets[1] || entry.offsets[1] > data.size())
      return Status::error("{}: tensor {} lies outside the {} of data that the file has", name,
                           shown_name(entry.name), counted(data.size(), "byte"));
    if (elements < 0 || static_cast<uint64_t>(elements * each) != entry.offsets[1] - entry.offsets[0])
      return Status::error("{}: tensor {} of shape [{}] and type {} does not fill its {}", name,
                           shown_name(entry.name), fmt::join(entry.shape, ", "), entry.dtype,
                           counted(entry.offsets[1] - entry.offsets[0], "byte"));
  }

  // 3. All together: no two share a byte or a name, and no byte is left over.
  std::ranges::sort(entries, {}, &Entry::offsets);
  uint64_t end = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].offsets[0] < end)
      return Status::error("{}: tensors {} and {} overlap", name, shown_name(entries[i - 1].name),
                           shown_name(entries[i].name));
    if (entries[i].offsets[0] > end)
      return Status::error("{}: {} before the tensor {} belong{} to none", name,
                           counted(entries[i].offsets[0] - end, "byte"), shown_name(entries[i].name),
                           entries[i].offsets[0] - end == 1 ? "s" : "");
    end = entries[i].offsets[1];
  }
  if (end != data.size())
    return Status::error("{}: has {} after its last tensor", name, counted(data.size() - end, "byte"));
  std::ranges::sort(entries, {}, &Entry::name);
  for (size_t i = 1; i < entries.size(); ++i)
    if (entries[i].name == entries[i - 1].name)
      return Status::error("{}: has two tensors {}", name, shown_name(entries[i].name));

  for (Entry& entry : entries)
    tensors.push_back({std::move(entry.name), std::move(entry.dtype),
                       std::vector<int64_t>(entry.shape.begin(), entry.shape.end()),
                       data.substr(entry.offsets[0], entry.offsets[1] - entry.offsets[0])});
  return {};
}

Status save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                        const Metadata& metadata, std::string_view dtype) {
  AtomicFile file;
  GACC_TRY(file.open(path));
  const auto write = [&](std::string_view bytes) { return file.write(bytes); };
  GACC_TRY(write_safetensors(path, tensors, metadata, dtype, write));
  return file.commit();
}

Result<std::string> safetensors_bytes(const std::string& path, const std::vector<NamedTensor>& tensors,
                                      const Metadata& metadata, std::string_view dtype) {
  std::string bytes;
  GACC_TRY(write_safetensors(path, tensors, metadata, dtype, [&](std::string_view part) {
    bytes += part;
    return Status();
  }));
  return bytes;
}

}  // namespace gacc
