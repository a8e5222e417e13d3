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

constexpr int64_t dtype_bytes(DType type) {
  constexpr int64_t sizes[] = {
#define GACC_DTYPE(name, bits, ...) bits / 8,
#include "ir/dtypes.def"
  };
  return sizes[static_cast<size_t>(type)];
}

}  // namespace gacc
