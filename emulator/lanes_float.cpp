// f32 lanes: IEEE operations rounded to nearest, the comparisons, and the approximate units. An approximation
// gives the correctly rounded value, which lies within every documented error bound; a kernel that needs the
// unit's exact bits cannot be checked here. Compiled once per instruction set.
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
  entry<float, float, float>(sink, name, f);
}

// With .ftz, subnormal inputs and results are zeros of their sign.
template <class F>
void approximate(LaneSink& sink, const char* op, F) {
  entry<float, float>(sink, Name(op, ".approx.f32"),
                      [](float a) { return canonical(static_cast<float>(F{}(double{a}))); });
  entry<float, float>(sink, Name(op, ".approx.ftz.f32"),
                      [](float a) { return flush(canonical(static_cast<float>(F{}(double{flush(a)})))); });
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
  entry<float, float, float, float>(
      sink, "fma.rn.f32", [](float a, float b, float c) { return canonical(__builtin_fmaf(a, b, c)); });
  entry<float, float>(sink, "sqrt.rn.f32", [](float a) { return canonical(__builtin_sqrtf(a)); });
  entry<float, float>(sink, "rcp.rn.f32", [](float a) { return canonical(1.0f / a); });
  entry<float, float>(sink, "neg.f32",
                      [](float a) { return bits_as<float>(bits_as<uint32_t>(a) ^ 0x80000000u); });
  entry<float, float>(sink, "abs.f32",
                      [](float a) { return bits_as<float>(bits_as<uint32_t>(a) & 0x7fffffffu); });
  each_comparison(
      [&]<class F>(const char* which, F f) { compare<float>(sink, Name("setp.", which, ".f32"), f); });
  approximate(sink, "rcp", [](double a) { return 1.0 / a; });
  approximate(sink, "sqrt", [](double a) { return __builtin_sqrt(a); });
  approximate(sink, "rsqrt", [](double a) { return 1.0 / __builtin_sqrt(a); });
  approximate(sink, "ex2", [](double a) { return __builtin_exp2(a); });
  approximate(sink, "lg2", [](double a) { return __builtin_log2(a); });
  for (const char* kind : {"div.approx", "div.full"}) {
    two_floats(sink, Name(kind, ".f32"), [](float a, float b) { return canonical(a / b); });
    two_floats(sink, Name(kind, ".ftz.f32"),
               [](float a, float b) { return flush(canonical(flush(a) / flush(b))); });
  }
}

}  // namespace gacc::emulator::GACC_LANES_NAMESPACE
