// NumPy's .npy: "\x93NUMPY", version, the length of a header that is a Python dictionary, the elements.
// The dictionary has exactly the keys descr, fortran_order and shape.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/byte_order.h"
#include "runtime/data/array.h"
#include "runtime/half.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr size_t kMaxRank = 32;  // NumPy's own

// The contents of the header.
struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<int64_t> shape;
};

// Python's dictionary becomes JSON: other quotes and brackets, True and False, a comma behind the last entry, and
// the L behind long integers of Python 2.
bool read_header(std::string_view text, Header& header) {
  std::string json;
  size_t last = 0;  // in `json`, that is no space
  char quote = '\0';
  for (const char c : text) {
    if (quote == '\0' && (c == ')' || c == '}') && json[last] == ',') json[last] = ' ';
    constexpr std::string_view kPython = "()TFL", kJson = "[]tf ";
    const size_t other = quote == '\0' ? kPython.find(c) : kPython.npos;
    if (c == '\'' || c == '"') quote = quote == '\0' ? c : quote == c ? '\0' : quote;
    json += other != kPython.npos ? kJson[other] : c == '\'' ? '"' : c;
    if (c != ' ' && c != '\n' && c != '\t') last = json.size() - 1;
  }
  const auto object = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto is_extent = [](const nlohmann::json& each) {
    return each.is_number_unsigned() && std::in_range<int64_t>(each.get<uint64_t>());
  };
  if (!object.is_object() || object.size() != 3 || !object.contains("descr") || !object.contains("shape") ||
      !object.contains("fortran_order"))
    return false;
  const auto &descr = object["descr"], &order = object["fortran_order"], &shape = object["shape"];
  if ((!descr.is_string() && !descr.is_array()) || !order.is_boolean() || !shape.is_array() ||
      shape.size() > kMaxRank || !std::ranges::all_of(shape, is_extent))
    return false;
  header = {descr.is_string() ? descr.get<std::string>() : "a structure", order.get<bool>(),
            shape.get<std::vector<int64_t>>()};
  return true;
}

// The stored form of the elements of a descr, and the type they become.
struct Elements {
  std::string_view descr;  // without the byte order
  int64_t stored;          // bytes
  std::string_view dtype;
};
constexpr Elements kElements[] = {
    {"f4", 4, "f32"}, {"f8", 8, "f64"}, {"f2", 2, "f32"}, {"i1", 1, "i8"},
    {"i2", 2, "i16"}, {"i4", 4, "i32"}, {"i8", 8, "i64"}, {"u1", 1, "u8"},
    {"u2", 2, "u16"}, {"u4", 4, "i64"}, {"u8", 8, "i64"}, {"b1", 1, "i8"},
};

// Converts the element kinds that no Column has; false when a u64 is beyond i64.
bool widen(std::string_view descr, std::vector<std::byte>& bytes, int64_t each) {
  const char* from = reinterpret_cast<const char*>(bytes.data());
  const size_t count = bytes.size() / static_cast<size_t>(each);
  std::vector<std::byte> wide(descr == "f2" || descr == "u4" ? bytes.size() * 2 : 0);
  if (descr == "f2") {
    widen(HalfType::f16, from, reinterpret_cast<float*>(wide.data()), static_cast<int64_t>(count));
    bytes = std::move(wide);
  } else if (descr == "u4") {
    for (size_t i = 0; i < count; ++i) {
      const int64_t value = read_little<uint32_t>(from + 4 * i);
      std::memcpy(wide.data() + 8 * i, &value, 8);
    }
    bytes = std::move(wide);
  } else if (descr == "u8") {
    for (size_t i = 0; i < count; ++i)
      if (read_little<uint64_t>(from + 8 * i) >> 63) return false;
  } else if (descr == "b1") {
    for (std::byte& b : bytes) b = b == std::byte{0} ? std::byte{0} : std::byte{1};
  }
  return true;
}

// From Fortran's order, in which the first axis runs fastest, to ours.
void to_row_major(std::vector<std::byte>& bytes, std::span<const int64_t> shape, size_t size) {
  std::vector<std::byte> rows(bytes.size());
  std::vector<size_t> stride(shape.size(), size), at(shape.size());
  for (size_t axis = 1; axis < shape.size(); ++axis)
    stride[axis] = stride[axis - 1] * static_cast<size_t>(shape[axis - 1]);
  size_t from = 0;
  for (size_t to = 0; to < rows.size(); to += size) {
    std::memcpy(rows.data() + to, bytes.data() + from, size);
    // The next element of our order: the last axis that is not at its end moves on, those after it go back.
    for (size_t axis = shape.size(); axis-- > 0;) {
      from += stride[axis];
      if (++at[axis] < static_cast<size_t>(shape[axis])) break;
      from -= stride[axis] * at[axis];
      at[axis] = 0;
    }
  }
  bytes = std::move(rows);
}

}  // namespace

Status parse_npy(std::string_view bytes, std::string_view name, Array& array, const SharedFile& in) {
  array = {};
  if (bytes.substr(0, 6) != "\x93NUMPY")
    return Status::error("{}: is no npy file: it does not begin with \\x93NUMPY", name);
  // 1. Version and header.
  const int version = bytes.size() < 10 ? 1 : static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3)
    return Status::error("{}: has npy version {}; known are 1, 2 and 3", name, version);
  const size_t start = version == 1 ? 10 : 12;
  if (bytes.size() < start) return Status::error("{}: is cut off in its header", name);
  size_t length =
      version == 1 ? read_little<uint16_t>(bytes.data() + 8) : read_little<uint32_t>(bytes.data() + 8);
  if (length > bytes.size() - start)
    return Status::error("{}: is cut off in its header: {} bytes are announced, {} are there", name, length,
                         bytes.size() - start);
  Header header;
  const std::string_view text = bytes.substr(start, length);
  if (!read_header(text, header))
    return Status::error("{}: its header is damaged: {}", name, in_quotes(text));

  // 2. The element type.
  std::string_view descr = header.descr;
  const bool big = !descr.empty() && descr[0] == '>';
  if (!descr.empty() && std::string_view("<>|=").find(descr[0]) != std::string_view::npos)
    descr.remove_prefix(1);
  const auto* const elements = std::ranges::find(kElements, descr, &Elements::descr);
  if (elements == std::end(kElements))
    return Status::error(
        "{}: holds elements of type {}; known are f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, u8 and b1", name,
        in_quotes(header.descr));
  if (header.shape.empty()) return Status::error("{}: holds a single number, not samples", name);

  // 3. The elements: as they lie in the file, if that is how an Array has them.
  const int64_t each = elements->stored;
  array.dtype = elements->dtype;
  array.shape = std::move(header.shape);
  const bool kept = element_bytes(elements->dtype) == each && descr != "u8" && descr != "b1";
  const bool aligned = (start + length) % static_cast<size_t>(each) == 0;
  const bool in_order = (!header.fortran || array.shape.size() <= 1) && (!big || each == 1);
  GACC_TRY(take_elements(bytes, start + length, name, in_quotes(header.descr), each,
                         kept && aligned && in_order ? in : SharedFile(), array));
  if (array.file) return {};
  if (header.fortran) to_row_major(array.bytes, array.shape, static_cast<size_t>(each));
  if (big) swap_elements(array.bytes, each);
  if (!widen(descr, array.bytes, each))
    return Status::error("{}: holds unsigned numbers beyond 2^63 - 1", name);
  return {};
}

}  // namespace gacc
