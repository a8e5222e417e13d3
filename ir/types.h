// Element types, shapes and tensor types. Shapes may start with the symbolic batch extent B: the number of
// samples of one micro-batch, at most Module::micro_batch, known only at launch (the last one may be ragged).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gacc {

constexpr int64_t ceil_divide(int64_t value, int64_t by) { return (value + by - 1) / by; }

namespace ir {

enum class DType : uint8_t {
#define GACC_DTYPE(name, ...) name,
#include "ir/dtypes.def"
};
// The properties of an element type. Code asks for these and not for a type, so that a further type is a further row.
struct DTypeInfo {
  std::string_view text;  // in IR, plans and PTX
  int block;              // elements that lie in memory together: 1, but for quantised types ...
  int bytes;              // ... and what they take
  DType computes_in;      // the type of its values in registers, and of their sums
  // Floating point: explicit bits of the significand, the exponent of the smallest normal number, and that of the first
  // power of two beyond its range.
  int mantissa, smallest, beyond;
};
inline constexpr DTypeInfo kDTypes[] = {
#define GACC_DTYPE(name, block, bytes, computes_in, mantissa, smallest, beyond) \
  {#name, block, bytes, DType::computes_in, mantissa, smallest, beyond},
#include "ir/dtypes.def"
};
constexpr const DTypeInfo& dtype_info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }
constexpr std::string_view dtype_text(DType dtype) { return dtype_info(dtype).text; }
// Returns the bytes of so many elements in memory: whole blocks, of a type that has blocks.
constexpr int64_t dtype_bytes(DType dtype, int64_t elements = 1) {
  const DTypeInfo& info = dtype_info(dtype);
  return ceil_divide(elements, info.block) * info.bytes;
}
// Returns true for a quantised type, whose elements lie in blocks along the last axis. Frozen parameters alone have
// such types (R31).
constexpr bool is_blocks(DType dtype) { return dtype_info(dtype).block > 1; }
constexpr bool is_float(DType dtype) { return dtype_info(dtype).computes_in == DType::f32; }
// Returns true for a type whose values are widened when they are loaded and rounded when they are stored.
constexpr bool is_narrow(DType dtype) { return dtype_info(dtype).computes_in != dtype; }
std::optional<DType> parse_dtype(std::string_view text);
// Returns the nearest number that a narrow type has, ties to even, infinite beyond its largest; other types: `value`.
double rounded(DType dtype, double value);
// Rounds each block to numbers of a type that has blocks, as ggml's reference chooses them. It does so in f32.
void round_blocks(DType dtype, std::span<double> values);

constexpr int64_t kBatch = -1;  // the symbolic extent, written B; only ever the first dimension

using Shape = std::vector<int64_t>;  // row-major; {} is a scalar

// Extents and products are checked: a shape whose element count does not fit 2^62 is refused where it is
// made.
std::optional<int64_t> checked_mul(int64_t a, int64_t b);
bool has_batch(const Shape& shape);
// Elements of `shape` with B = batch. The shape must have passed `fits`.
int64_t elements(const Shape& shape, int64_t batch);
bool fits(const Shape& shape, int64_t batch);  // every extent >= 1 (or B) and the byte size below 2^62
std::string shape_text(const Shape& shape);    // "[B,784]"
// The most rows and columns that a product takes: its kernels hold byte offsets inside a row (2^30 elements of
// 4 bytes) in 32 bits, and coordinates run past the edge by a tile, which has 256 rows or columns at most.
constexpr int64_t kMostMatrixExtent = (int64_t{1} << 30) - 256;
// NumPy broadcasting restricted to what a kernel can index (docs/ir.md R9), or nothing when they do not
// agree.
std::optional<Shape> broadcast(const Shape& a, const Shape& b);

struct Type {
  DType dtype = DType::f32;
  Shape shape{};
  // In memory, elements from one row to the next: at least the last extent, or 0 for rows without gaps. Gaps
  // hold anything.
  int64_t pitch = 0;
  // Types of the same numbers are equal, whatever the pitch.
  bool operator==(const Type& other) const { return dtype == other.dtype && shape == other.shape; }
};
std::string type_text(const Type& type);              // "f32[B,784]"; with a pitch "f16[B,50257 in 50304]"
int64_t type_bytes(const Type& type, int64_t batch);  // in memory, with the gaps
int64_t row_pitch(const Type& type);                  // elements; of a scalar 1

}  // namespace ir
}  // namespace gacc
