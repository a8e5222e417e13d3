// Half precision on the host: runs of f16 or bf16 numbers to f32 and back, the same bits on every CPU, which are
// those of a device's casts: f16 by F16C where there is that, else by integers; bf16 always by integers (the CPU's
// own instruction loses denormal numbers).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/dtype.h"

namespace gacc {

enum class HalfType : uint8_t { f16, bf16 };
constexpr HalfType half_type(DType dtype) { return dtype == DType::f16 ? HalfType::f16 : HalfType::bf16; }
// Takes a half type's name in a safetensors file.
constexpr HalfType half_type(std::string_view dtype) {
  return dtype == "F16" ? HalfType::f16 : HalfType::bf16;
}

// Runs may begin at any address and must not overlap. narrow rounds to nearest even; a NaN stays a
// quiet one with its sign and its upper payload.
void widen(HalfType type, const void* halves, float* to, int64_t count);
void narrow(HalfType type, const void* floats, uint16_t* to, int64_t count);
// `halves` becomes as long as `floats`.
void round_to_half(std::span<const std::byte> floats, HalfType type, std::vector<uint16_t>& halves);

}  // namespace gacc
