// Each conversion is written for one number, of which the compiler makes vectors; those of f16 also for
// vectors with F16C. Whether the CPU has AVX2 is asked once. (Wider vectors gain nothing: this is memory traffic.)
#include "runtime/half.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gacc {

namespace {

// The formulas are those of codegen/emit/half_values.cpp.
float float_of_f16(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  uint32_t result = 0;
  if (magnitude >= 0x7c00)
    result = magnitude << 13 | 0x7f800000 | (magnitude > 0x7c00 ? 0x400000 : 0);
  else
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
  return std::bit_cast<float>(result | sign);
}

uint16_t f16_of_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  uint32_t result = 0;
  if (magnitude > 0x7f800000)
    result = 0x7e00 | (magnitude >> 13 & 0x1ff);
  else if (magnitude >= 0x47800000)
    result = 0x7c00;
  else if (magnitude >= 0x38800000)
    result = (magnitude + (magnitude >> 13 & 1) + 0xc8000fff) >> 13;
  else
    result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  return static_cast<uint16_t>(result | sign);
}

float float_of_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t bf16_of_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <auto one, class From, class To>
inline void each(const void* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, static_cast<const char*>(from) + i * static_cast<int64_t>(sizeof value),
                sizeof value);
    to[i] = one(value);
  }
}

using Widen = void (*)(const void*, float*, int64_t);
using Narrow = void (*)(const void*, uint16_t*, int64_t);
struct Functions {
  Widen widen_f16 = each<float_of_f16, uint16_t, float>, widen_bf16 = each<float_of_bf16, uint16_t, float>;
  Narrow narrow_f16 = each<f16_of_float, float, uint16_t>, narrow_bf16 = each<bf16_of_float, float, uint16_t>;
};

#if defined(__x86_64__)

// _mm256_zeroupper: g++ forgets it before a tail call, and what runs next then takes 100 ns longer.
#define GACC_AVX2 __attribute__((target("avx2,f16c")))

GACC_AVX2 void widen_f16(const void* halves, float* to, int64_t count) {
  const auto* from = static_cast<const uint16_t*>(halves);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  _mm256_zeroupper();
  each<float_of_f16, uint16_t, float>(from + i, to + i, count - i);
}
GACC_AVX2 void narrow_f16(const void* floats, uint16_t* to, int64_t count) {
  const auto* from = static_cast<const float*>(floats);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  _mm256_zeroupper();
  each<f16_of_float, float, uint16_t>(from + i, to + i, count - i);
}
template <auto one, class From, class To>
GACC_AVX2 void each_avx2(const void* from, To* to, int64_t count) {
  each<one, From>(from, to, count);
}

#endif

Functions choose() {
  Functions functions;
#if defined(__x86_64__)
  // Every CPU with AVX2 has F16C; not every compiler knows how to ask for that.
  if (__builtin_cpu_supports("avx2"))
    return {widen_f16, each_avx2<float_of_bf16, uint16_t, float>, narrow_f16,
            each_avx2<bf16_of_float, float, uint16_t>};
#endif
  return functions;
}

const Functions& functions() {
  static const Functions chosen = choose();
  return chosen;
}

}  // namespace

void widen(HalfType type, const void* halves, float* to, int64_t count) {
  (type == HalfType::f16 ? functions().widen_f16 : functions().widen_bf16)(halves, to, count);
}

void narrow(HalfType type, const void* floats, uint16_t* to, int64_t count) {
  (type == HalfType::f16 ? functions().narrow_f16 : functions().narrow_bf16)(floats, to, count);
}

void round_to_half(std::span<const std::byte> floats, HalfType type, std::vector<uint16_t>& halves) {
  halves.resize(floats.size() / sizeof(float));
  narrow(type, floats.data(), halves.data(), static_cast<int64_t>(halves.size()));
}

}  // namespace gacc
