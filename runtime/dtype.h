// Types of elements in the arena, as the IR has them (ir/dtypes.def).
#pragma once
#include <cstdint>
#include <string_view>

namespace gacc {

enum class DType : uint8_t {
#define GACC_DTYPE(name, ...) name,
#include "ir/dtypes.def"
};

// Returns "f32". The text ends in a zero byte.
constexpr std::string_view dtype_text(DType type) {
  constexpr std::string_view texts[] = {
#define GACC_DTYPE(name, ...) #name,
#include "ir/dtypes.def"
  };
  return texts[static_cast<size_t>(type)];
}

// Returns the elements that lie in memory together: 1, but for quantised types.
constexpr int64_t dtype_block(DType type) {
  constexpr int64_t blocks[] = {
#define GACC_DTYPE(name, block, ...) block,
#include "ir/dtypes.def"
  };
  return blocks[static_cast<size_t>(type)];
}

// Returns the bytes of so many elements: whole blocks, of a type that has blocks.
constexpr int64_t dtype_bytes(DType type, int64_t elements = 1) {
  constexpr int64_t sizes[] = {
#define GACC_DTYPE(name, block, bytes, ...) bytes,
#include "ir/dtypes.def"
  };
  const int64_t block = dtype_block(type);
  return (elements + block - 1) / block * sizes[static_cast<size_t>(type)];
}

}  // namespace gacc
