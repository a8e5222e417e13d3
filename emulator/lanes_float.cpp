// f32 lanes that are IEEE operations rounded to nearest: add, mul, fma, div, sqrt, rcp, min, max, the
// comparisons. Compiled once per instruction set.
#include "emulator/lane_helpers.h"

namespace gacc::emulator::GACC_LANES_NAMESPACE {
namespace {

// min(-0, +0) is -0; a NaN loses against a number.
float minimum(float a, float b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return __builtin_signbit(a) ? a : b;
  return a < b ? a : b;
}
float maximum(float a, float b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return __builtin_signbit(a) ? b : a;
  return a > b ? a : b;
}
bool unordered(float a, float b) { return a != a || b != b; }

template <class F>
void two_floats(LaneSink& sink, const char* name, F f) {
  two<float, float, float>(sink, name, f);
}

}  // namespace

void add_float_lanes(LaneSink& sink) {
  for (const char* rounding : {".f32", ".rn.f32"}) {
    two_floats(sink, Name("add", rounding), [](float a, float b) { return canonical(a + b); });
    two_floats(sink, Name("sub", rounding), [](float a, float b) { return canonical(a - b); });
    two_floats(sink, Name("mul", rounding), [](float a, float b) { return canonical(a * b); });
  }
  two_floats(sink, "div.rn.f32", [](float a, float b) { return canonical(a / b); });
  two_floats(sink, "min.f32", [](float a, float b) { return minimum(a, b); });
  two_floats(sink, "max.f32", [](float a, float b) { return maximum(a, b); });
  two_floats(sink, "min.NaN.f32",
             [](float a, float b) { return unordered(a, b) ? bits_as<float>(kNan32) : minimum(a, b); });
  two_floats(sink, "max.NaN.f32",
             [](float a, float b) { return unordered(a, b) ? bits_as<float>(kNan32) : maximum(a, b); });
  two_floats(sink, "copysign.f32", [](float a, float b) {  // the sign of a, the magnitude of b
    return bits_as<float>((bits_as<uint32_t>(a) & 0x80000000u) | (bits_as<uint32_t>(b) & 0x7fffffffu));
  });
  three<float, float, float, float>(
      sink, "fma.rn.f32", [](float a, float b, float c) { return canonical(__builtin_fmaf(a, b, c)); });
  one<float, float>(sink, "sqrt.rn.f32", [](float a) { return canonical(__builtin_sqrtf(a)); });
  one<float, float>(sink, "rcp.rn.f32", [](float a) { return canonical(1.0f / a); });
  one<float, float>(sink, "neg.f32",
                    [](float a) { return bits_as<float>(bits_as<uint32_t>(a) ^ 0x80000000u); });
  one<float, float>(sink, "abs.f32",
                    [](float a) { return bits_as<float>(bits_as<uint32_t>(a) & 0x7fffffffu); });
  each_comparison(
      [&]<class F>(const char* which, F f) { compare<float>(sink, Name("setp.", which, ".f32"), f); });
}

}  // namespace gacc::emulator::GACC_LANES_NAMESPACE
