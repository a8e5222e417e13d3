// Arrays as files hold them: an element type, a shape, the elements. Every reader of this folder takes bytes
// and a name for its messages, so that it can be tested and fuzzed without files, and returns arrays whose
// size is checked against their shape.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/file_bytes.h"
#include "runtime/status.h"

namespace gacc {

struct Array {
  std::string dtype;             // as in Column: "u8", "u16", "i8", "i16", "i32", "i64", "f32", "f64"
  std::vector<int64_t> shape;    // row-major, samples first
  std::vector<std::byte> bytes;  // in this machine's byte order; or none, and
  SharedFile file{};             // the file that holds them ...
  size_t first = 0;              // ... from this byte on

  int64_t samples() const { return shape.empty() ? 0 : shape[0]; }
};

struct NamedArray {
  std::string name;
  Array array;
};

// Calls `visit` with the bytes as elements of `dtype`; not for an unknown one.
template <class Visit>
void visit_elements(std::string_view dtype, std::span<const std::byte> bytes, Visit visit) {
  const auto as = [&]<class T>(T) {
    visit(std::span<const T>(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)));
  };
  if (dtype == "u8") as(uint8_t{});
  if (dtype == "u16") as(uint16_t{});
  if (dtype == "i8") as(int8_t{});
  if (dtype == "i16") as(int16_t{});
  if (dtype == "i32") as(int32_t{});
  if (dtype == "i64") as(int64_t{});
  if (dtype == "f32") as(float{});
  if (dtype == "f64") as(double{});
}

// Bytes of one element; 0 for an unknown dtype.
int64_t element_bytes(std::string_view dtype);
// The product of extents, or -1 when an extent is negative or the product exceeds 2^46.
int64_t checked_product(std::span<const int64_t> extents);

// Gives the array, whose shape is known, the elements behind the first `header` bytes of a file. They must be
// all of the rest, of `each` bytes; `type` is the file's name of them. With `in` they stay there, else they
// are a copy.
Status take_elements(std::string_view bytes, size_t header, std::string_view name, std::string_view type,
                     int64_t each, const SharedFile& in, Array& array);

// IDX, the format of MNIST: big-endian, types u8 i8 i16 i32 f32 f64.
Status parse_idx(std::string_view bytes, std::string_view name, Array& array, const SharedFile& in = {});

// NumPy's .npy, versions 1 to 3, either byte order of elements and either order of axes; f16 becomes f32, u32
// and u64 i64, bool i8. Structures and text are refused.
Status parse_npy(std::string_view bytes, std::string_view name, Array& array, const SharedFile& in = {});

// NumPy's .npz, a zip of .npy entries. Reads those entries whose name (without .npy) is in `wanted`, all when
// `wanted` is null; `names` gets all names, in the file's order.
Status parse_npz(std::string_view bytes, std::string_view name, const std::vector<std::string>* wanted,
                 std::vector<NamedArray>& arrays, std::vector<std::string>& names);

}  // namespace gacc
