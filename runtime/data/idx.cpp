// IDX: two zero bytes, a type code, the number of dimensions, big-endian 32-bit extents, big-endian elements.
#include <cstring>

#include "runtime/data/array.h"
#include "runtime/data/byte_order.h"
#include "runtime/data/text.h"

namespace gacc {
namespace {

std::string_view dtype_of(uint8_t code) {
  constexpr std::string_view kTypes[] = {"u8",  "i8",  "",   "i16",
                                         "i32", "f32", "f64"};  // of the codes from 8 on
  return code >= 8 && code < 8 + std::size(kTypes) ? kTypes[code - 8] : "";
}

}  // namespace

Status parse_idx(std::string_view bytes, std::string_view name, Array& array, const SharedFile& in) {
  array = {};
  if (bytes.size() < 4)
    return Status::error("{}: is no IDX file: it has {}, the header alone has 4", name,
                         counted(bytes.size(), "byte"));
  auto byte = [&](size_t at) { return static_cast<uint8_t>(bytes[at]); };
  std::string_view dtype = dtype_of(byte(2));
  if (byte(0) != 0 || byte(1) != 0 || dtype.empty())
    return Status::error("{}: is no IDX file: it begins with {:02x} {:02x} {:02x} {:02x}", name, byte(0),
                         byte(1), byte(2), byte(3));
  const size_t rank = byte(3);
  if (rank == 0) return Status::error("{}: holds a single number, not samples", name);
  size_t header = 4 + 4 * rank;
  if (bytes.size() < header)
    return Status::error("{}: is cut off: {} need{} a header of {} bytes, there are {}", name,
                         counted(rank, "dimension"), rank == 1 ? "s" : "", header, bytes.size());
  for (size_t i = 0; i < rank; ++i) array.shape.push_back(read_big<uint32_t>(bytes.data() + 4 + 4 * i));
  const int64_t elements = checked_product(array.shape);
  const int64_t size = elements * element_bytes(dtype);
  auto present = static_cast<int64_t>(bytes.size() - header);
  if (elements < 0 || size != present)
    return Status::error("{}: its header says {} of {}, which is {}, but there are {}", name,
                         shape_text(array.shape), dtype,
                         elements < 0 ? "too many bytes" : counted(size, "byte"), present);
  array.dtype = dtype;
  if (in && element_bytes(dtype) == 1) {
    array.file = in;
    array.first = header;
    return {};
  }
  array.bytes.resize(static_cast<size_t>(size));
  if (size > 0) std::memcpy(array.bytes.data(), bytes.data() + header, array.bytes.size());
  swap_elements(array.bytes, element_bytes(dtype));
  return {};
}

}  // namespace gacc
