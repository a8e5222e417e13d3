#include "runtime/data/array.h"

#include "runtime/byte_order.h"
#include "runtime/text.h"

namespace gacc {

int64_t element_bytes(std::string_view dtype) {
  int64_t bytes = 0;
  visit_elements(dtype, {}, [&]<class T>(std::span<const T>) { bytes = sizeof(T); });
  return bytes;
}

int64_t checked_product(std::span<const int64_t> extents) {
  constexpr int64_t kLimit = int64_t{1} << 46;
  int64_t product = 1;
  for (const int64_t extent : extents) {
    if (extent < 0) return -1;
    if (extent == 0) return 0;
  }
  for (const int64_t extent : extents) {
    if (extent > kLimit / product) return -1;
    product *= extent;
  }
  return product;
}

Status take_elements(std::string_view bytes, size_t header, std::string_view name, std::string_view type,
                     int64_t each, const SharedFile& in, Array& array) {
  const int64_t elements = checked_product(array.shape);
  const auto data = std::as_bytes(std::span(bytes.substr(header)));
  if (elements < 0 || elements * each != static_cast<int64_t>(data.size()))
    return Status::error("{}: its header says {} of {}, which is {}, but there are {}", name,
                         shape_text(array.shape), type,
                         elements < 0 ? "too many bytes" : counted(elements * each, "byte"), data.size());
  array.file = in;
  if (in)
    array.first = header;
  else
    array.bytes.assign(data.begin(), data.end());
  return {};
}

// Two zero bytes, a type code, the number of dimensions, big-endian 32-bit extents, big-endian elements.
Status parse_idx(std::string_view bytes, std::string_view name, Array& array, const SharedFile& in) {
  array = {};
  if (bytes.size() < 4)
    return Status::error("{}: is no IDX file: it has {}, the header alone has 4", name,
                         counted(bytes.size(), "byte"));
  auto byte = [&](size_t at) { return static_cast<uint8_t>(bytes[at]); };
  constexpr std::string_view kTypes[] = {"u8",  "i8",  "",   "i16",
                                         "i32", "f32", "f64"};  // of the codes from 8 on
  const size_t code = byte(2);
  const std::string_view dtype = code >= 8 && code < 8 + std::size(kTypes) ? kTypes[code - 8] : "";
  if (byte(0) != 0 || byte(1) != 0 || dtype.empty())
    return Status::error("{}: is no IDX file: it begins with {:02x} {:02x} {:02x} {:02x}", name, byte(0),
                         byte(1), code, byte(3));
  const size_t rank = byte(3);
  if (rank == 0) return Status::error("{}: holds a single number, not samples", name);
  const size_t header = 4 + 4 * rank;
  if (bytes.size() < header)
    return Status::error("{}: is cut off: {} need{} a header of {} bytes, there are {}", name,
                         counted(rank, "dimension"), rank == 1 ? "s" : "", header, bytes.size());
  for (size_t at = 4; at < header; at += 4)
    array.shape.push_back(__builtin_bswap32(read_little<uint32_t>(bytes.data() + at)));
  array.dtype = dtype;
  const int64_t each = element_bytes(dtype);
  GACC_TRY(take_elements(bytes, header, name, dtype, each, each == 1 ? in : SharedFile(), array));
  swap_elements(array.bytes, each);
  return {};
}

}  // namespace gacc
