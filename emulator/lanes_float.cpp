// f32 and f64 lanes that are IEEE operations rounded to nearest: add, mul, fma, div, sqrt, rcp, min, max, the
// comparisons. Compiled once per instruction set. With .ftz, subnormal inputs and results are zeros of their
// sign.
#include "emulator/lane_helpers.h"

namespace gacc::emulator::GACC_LANES_NAMESPACE {
namespace {

constexpr uint32_t kNan32 = 0x7fffffff;  // the NaN that PTX's f32 arithmetic makes

inline float canonical(float x) { return x != x ? bits_as<float>(kNan32) : x; }
inline double canonical(double x) { return x; }  // f64 keeps payloads

template <class F>
struct Ftz {
  float operator()(float a) const { return flush(F{}(flush(a))); }
  float operator()(float a, float b) const { return flush(F{}(flush(a), flush(b))); }
  float operator()(float a, float b, float c) const { return flush(F{}(flush(a), flush(b), flush(c))); }
};
template <class F>
struct Sat {
  template <class... A>
  float operator()(A... a) const {
    return saturate(F{}(a...));
  }
};

// The two, three-source entries of f32 with .ftz and .sat; `root` includes the rounding ("add.rn").
template <bool saturating, class F>
void f32_2(LaneSink& sink, const char* root, F f) {
  two<float, float, float>(sink, Name(root, ".f32"), f);
  two<float, float, float>(sink, Name(root, ".ftz.f32"), Ftz<F>{});
  if constexpr (!saturating) return;
  two<float, float, float>(sink, Name(root, ".sat.f32"), Sat<F>{});
  two<float, float, float>(sink, Name(root, ".ftz.sat.f32"), Sat<Ftz<F>>{});
}
template <class F>
void f32_3(LaneSink& sink, const char* root, F f) {
  three<float, float, float, float>(sink, Name(root, ".f32"), f);
  three<float, float, float, float>(sink, Name(root, ".ftz.f32"), Ftz<F>{});
  three<float, float, float, float>(sink, Name(root, ".sat.f32"), Sat<F>{});
  three<float, float, float, float>(sink, Name(root, ".ftz.sat.f32"), Sat<Ftz<F>>{});
}
template <class F>
void f32_1(LaneSink& sink, const char* root, F f) {
  one<float, float>(sink, Name(root, ".f32"), f);
  one<float, float>(sink, Name(root, ".ftz.f32"), Ftz<F>{});
}

// min(-0, +0) is -0; a NaN loses against a number.
template <class T>
inline T minimum(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return __builtin_signbit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
inline T maximum(T a, T b) {
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return __builtin_signbit(a) ? b : a;
  return a > b ? a : b;
}

template <class T>
bool unordered(T a, T b) {
  return a != a || b != b;
}

template <class F>
struct FlushedCompare {
  bool operator()(float a, float b) const { return F{}(flush(a), flush(b)); }
};
template <class T>
void comparisons(LaneSink& sink, const char* type) {
  each_comparison([&]<class F>(const char* which, F f) {
    compare<T>(sink, Name("setp.", which, ".", type), f);
    if constexpr (sizeof(T) == 4) compare<T>(sink, Name("setp.", which, ".ftz.", type), FlushedCompare<F>{});
  });
}

void f32_lanes(LaneSink& sink) {
  for (const char* rounding : {"", ".rn"}) {
    f32_2<true>(sink, Name("add", rounding), [](float a, float b) { return canonical(a + b); });
    f32_2<true>(sink, Name("sub", rounding), [](float a, float b) { return canonical(a - b); });
    f32_2<true>(sink, Name("mul", rounding), [](float a, float b) { return canonical(a * b); });
  }
  f32_2<false>(sink, "div.rn", [](float a, float b) { return canonical(a / b); });
  f32_2<false>(sink, "min", [](float a, float b) { return minimum(a, b); });
  f32_2<false>(sink, "max", [](float a, float b) { return maximum(a, b); });
  f32_2<false>(sink, "min.NaN",
               [](float a, float b) { return unordered(a, b) ? bits_as<float>(kNan32) : minimum(a, b); });
  f32_2<false>(sink, "max.NaN",
               [](float a, float b) { return unordered(a, b) ? bits_as<float>(kNan32) : maximum(a, b); });
  // PTX writes .ftz before .NaN.
  two<float, float, float>(sink, "min.ftz.NaN.f32", [](float a, float b) {
    return unordered(a, b) ? bits_as<float>(kNan32) : flush(minimum(flush(a), flush(b)));
  });
  two<float, float, float>(sink, "max.ftz.NaN.f32", [](float a, float b) {
    return unordered(a, b) ? bits_as<float>(kNan32) : flush(maximum(flush(a), flush(b)));
  });
  for (const char* root : {"fma.rn", "mad.rn", "mad"})
    f32_3(sink, root, [](float a, float b, float c) { return canonical(__builtin_fmaf(a, b, c)); });
  f32_1(sink, "sqrt.rn", [](float a) { return canonical(__builtin_sqrtf(a)); });
  f32_1(sink, "rcp.rn", [](float a) { return canonical(1.0f / a); });
  f32_1(sink, "neg", [](float a) { return bits_as<float>(bits_as<uint32_t>(a) ^ 0x80000000u); });
  f32_1(sink, "abs", [](float a) { return bits_as<float>(bits_as<uint32_t>(a) & 0x7fffffffu); });
  two<float, float, float>(sink, "copysign.f32", [](float a, float b) {  // the sign of a, the magnitude of b
    return bits_as<float>((bits_as<uint32_t>(a) & 0x80000000u) | (bits_as<uint32_t>(b) & 0x7fffffffu));
  });
  comparisons<float>(sink, "f32");
}

void f64_lanes(LaneSink& sink) {
  using D = double;
  for (const char* rounding : {"", ".rn"}) {
    two<D, D, D>(sink, Name("add", rounding, ".f64"), [](D a, D b) { return a + b; });
    two<D, D, D>(sink, Name("sub", rounding, ".f64"), [](D a, D b) { return a - b; });
    two<D, D, D>(sink, Name("mul", rounding, ".f64"), [](D a, D b) { return a * b; });
  }
  two<D, D, D>(sink, "div.rn.f64", [](D a, D b) { return a / b; });
  two<D, D, D>(sink, "min.f64", [](D a, D b) { return minimum(a, b); });
  two<D, D, D>(sink, "max.f64", [](D a, D b) { return maximum(a, b); });
  for (const char* root : {"fma.rn", "mad.rn"})
    three<D, D, D, D>(sink, Name(root, ".f64"), [](D a, D b, D c) { return __builtin_fma(a, b, c); });
  one<D, D>(sink, "sqrt.rn.f64", [](D a) { return __builtin_sqrt(a); });
  one<D, D>(sink, "rcp.rn.f64", [](D a) { return 1.0 / a; });
  one<D, D>(sink, "neg.f64", [](D a) { return -a; });
  one<D, D>(sink, "abs.f64", [](D a) { return __builtin_fabs(a); });
  comparisons<D>(sink, "f64");
}

template <class T>
void tests(LaneSink& sink, const char* type) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int mantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr U infinity = (sizeof(T) == 4 ? U{0xff} : U{0x7ff}) << mantissa;
  constexpr U magnitude = static_cast<U>(~U{0}) >> 1;
  uint8_t source[] = {sizeof(T)};
  auto entry = [&]<class F>(const char* which, F) {
    sink.add(Name("testp.", which, ".", type), &compare1<F, U>, kPredicate, source, 1);
  };
  entry("finite", [](U a) { return (a & magnitude) < infinity; });
  entry("infinite", [](U a) { return (a & magnitude) == infinity; });
  entry("number", [](U a) { return (a & magnitude) <= infinity; });
  entry("notanumber", [](U a) { return (a & magnitude) > infinity; });
  entry("normal", [](U a) { return (a & magnitude) < infinity && (a & infinity) != 0; });
  entry("subnormal", [](U a) { return (a & infinity) == 0 && (a & magnitude) != 0; });
}

}  // namespace

void add_float_lanes(LaneSink& sink) {
  f32_lanes(sink);
  f64_lanes(sink);
  tests<float>(sink, "f32");
  tests<double>(sink, "f64");
}

}  // namespace gacc::emulator::GACC_LANES_NAMESPACE
