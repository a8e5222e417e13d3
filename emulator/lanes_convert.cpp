// cvt in all the pairs and rounding modes accepted. Source and destination lanes have their own type's width;
// the decoder widens registers that are larger. A float becomes an integer with saturation, NaN becomes 0.
#include <cmath>
#include <limits>

#include "emulator/lane_helpers.h"

namespace gacc::emulator {
using namespace lanes;
namespace {

template <Round mode>
double to_integral(double x) {
  switch (mode) {
    case Round::rn:
      return std::nearbyint(x);  // the default mode, to even
    case Round::rz:
      return std::trunc(x);
    case Round::rm:
      return std::floor(x);
    case Round::rp:
      return std::ceil(x);
    case Round::rna:
      return std::round(x);
  }
  return x;
}

template <class T, Round mode>
T integer_from(double x, bool from_f64) {
  using L = std::numeric_limits<T>;
  // A NaN gives 0, but the top bit alone where the source is f64 or the result has 64 bits.
  if (x != x) return from_f64 || sizeof(T) == 8 ? static_cast<T>(uint64_t{1} << (8 * sizeof(T) - 1)) : T{0};
  double r = to_integral<mode>(x);
  if (r <= static_cast<double>(L::min())) return L::min();
  if (r >= std::ldexp(1.0, L::digits)) return L::max();
  return static_cast<T>(r);
}

// A number (exact as long double: 64-bit integers and doubles are) rounded to f32 or f64.
template <class F, Round mode>
F float_from(long double x) {
  F r = static_cast<F>(x);
  long double back = r;
  if (x != x || mode == Round::rn || back == x) return r;
  bool above = back > x;
  bool want_below = mode == Round::rm || (mode == Round::rz && x > 0);
  if (above && want_below) return std::nextafter(r, -std::numeric_limits<F>::infinity());
  if (!above && !want_below) return std::nextafter(r, std::numeric_limits<F>::infinity());
  return r;
}
float nan_or(float x) { return x != x ? bits_as<float>(0x7fffffffu) : x; }

template <class T, class S, class W, Round mode>
void float_to_int(LaneSink& sink, const char* round, const char* to, const char* from, W) {
  one<T, S>(sink, Name("cvt.", round, ".", to, ".", from),
            [](S a) { return integer_from<T, mode>(W{}(a), sizeof(S) == 8); });
  if (sizeof(S) == 4)
    one<T, S>(sink, Name("cvt.", round, ".ftz.", to, ".", from), [](S a) {
      double x = W{}(a);
      return integer_from<T, mode>(std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x, false);
    });
}
// Calls add(T{}, name) for every integer type, and add.operator()<mode>(name) for every rounding mode.
template <class F>
void each_integer(F add) {
  add(uint8_t{}, "u8"), add(int8_t{}, "s8"), add(uint16_t{}, "u16"), add(int16_t{}, "s16");
  add(uint32_t{}, "u32"), add(int32_t{}, "s32"), add(uint64_t{}, "u64"), add(int64_t{}, "s64");
}
template <class F>
void each_mode(F add, const char* suffix = "") {
  add.template operator()<Round::rn>(Name("rn", suffix)),
      add.template operator()<Round::rz>(Name("rz", suffix));
  add.template operator()<Round::rm>(Name("rm", suffix)),
      add.template operator()<Round::rp>(Name("rp", suffix));
}

template <class S, class W>
void float_to_all_ints(LaneSink& sink, const char* from, W w) {
  each_mode(
      [&]<Round mode>(const char* round) {
        each_integer(
            [&]<class T>(T, const char* to) { float_to_int<T, S, W, mode>(sink, round, to, from, w); });
      },
      "i");
}

template <class S>
void int_to_floats(LaneSink& sink, const char* from) {
  each_mode([&]<Round mode>(const char* round) {
    one<float, S>(sink, Name("cvt.", round, ".f32.", from), [](S a) { return float_from<float, mode>(a); });
    one<double, S>(sink, Name("cvt.", round, ".f64.", from), [](S a) { return float_from<double, mode>(a); });
    // Integers above 2^53 lose bits in the double, but all of those are beyond f16's range; to odd not
    // needed.
    one<uint16_t, S>(sink, Name("cvt.", round, ".f16.", from),
                     [](S a) { return half_from(static_cast<double>(a), mode); });
  });
}

template <class D, class S>
void int_to_int(LaneSink& sink, const char* to, const char* from) {
  one<D, S>(sink, Name("cvt.", to, ".", from), [](S a) { return static_cast<D>(a); });
  one<D, S>(sink, Name("cvt.sat.", to, ".", from), [](S a) {
    __int128 x = a;
    using L = std::numeric_limits<D>;
    return x < static_cast<__int128>(L::min())   ? L::min()
           : x > static_cast<__int128>(L::max()) ? L::max()
                                                 : static_cast<D>(a);
  });
}
// Rounding to an integral value in the same format: cvt.rni.f32.f32.
template <Round mode>
void integral(LaneSink& sink, const char* round) {
  one<float, float>(sink, Name("cvt.", round, ".f32.f32"),
                    [](float a) { return nan_or(static_cast<float>(to_integral<mode>(a))); });
  one<float, float>(sink, Name("cvt.", round, ".ftz.f32.f32"),
                    [](float a) { return nan_or(static_cast<float>(to_integral<mode>(flush(a)))); });
  one<double, double>(sink, Name("cvt.", round, ".f64.f64"), [](double a) { return to_integral<mode>(a); });
  one<uint16_t, uint16_t>(sink, Name("cvt.", round, ".f16.f16"),
                          [](uint16_t a) { return half_from(to_integral<mode>(float_of_half(a))); });
}

template <Round mode>
void narrowing(LaneSink& sink, const char* round) {
  one<float, double>(sink, Name("cvt.", round, ".f32.f64"),
                     [](double a) { return nan_or(float_from<float, mode>(a)); });
  one<float, double>(sink, Name("cvt.", round, ".ftz.f32.f64"),
                     [](double a) { return flush(nan_or(float_from<float, mode>(a))); });
  one<uint16_t, double>(sink, Name("cvt.", round, ".f16.f64"), [](double a) { return half_from(a, mode); });
  one<uint16_t, float>(sink, Name("cvt.", round, ".f16.f32"), [](float a) { return half_from(a, mode); });
  one<uint16_t, float>(sink, Name("cvt.", round, ".ftz.f16.f32"),
                       [](float a) { return half_from(flush(a), mode); });
  if constexpr (mode != Round::rn && mode != Round::rz) return;
  auto relu = [](uint16_t r, uint16_t infinity) {
    return static_cast<uint16_t>((r & 0x7fff) > infinity ? 0x7fff : r & 0x8000 ? 0 : r);
  };
  using R = decltype(relu);
  one<uint16_t, float>(sink, Name("cvt.", round, ".bf16.f32"), [](float a) { return bf16_from(a, mode); });
  one<uint16_t, float>(sink, Name("cvt.", round, ".relu.bf16.f32"),
                       [](float a) { return R{}(bf16_from(a, mode), 0x7f80); });
  one<uint16_t, float>(sink, Name("cvt.", round, ".relu.f16.f32"),
                       [](float a) { return R{}(half_from(a, mode), 0x7c00); });
  // The first source goes to the upper half.
  using U = uint32_t;
  two<U, float, float>(sink, Name("cvt.", round, ".f16x2.f32"),
                       [](float a, float b) { return U{half_from(a, mode)} << 16 | half_from(b, mode); });
  two<U, float, float>(sink, Name("cvt.", round, ".bf16x2.f32"),
                       [](float a, float b) { return U{bf16_from(a, mode)} << 16 | bf16_from(b, mode); });
  two<U, float, float>(sink, Name("cvt.", round, ".relu.f16x2.f32"), [](float a, float b) {
    return U{R{}(half_from(a, mode), 0x7c00)} << 16 | R{}(half_from(b, mode), 0x7c00);
  });
  two<U, float, float>(sink, Name("cvt.", round, ".relu.bf16x2.f32"), [](float a, float b) {
    return U{R{}(bf16_from(a, mode), 0x7f80)} << 16 | R{}(bf16_from(b, mode), 0x7f80);
  });
  one<U, float>(sink, Name("cvt.", round, ".tf32.f32"), [](float a) { return tf32_from(a, mode); });
}

void exact(LaneSink& sink) {
  one<double, float>(sink, "cvt.f64.f32", [](float a) { return static_cast<double>(a); });
  one<double, float>(sink, "cvt.ftz.f64.f32", [](float a) { return static_cast<double>(flush(a)); });
  one<float, uint16_t>(sink, "cvt.f32.f16", [](uint16_t a) { return nan_or(float_of_half(a)); });
  one<float, uint16_t>(sink, "cvt.ftz.f32.f16", [](uint16_t a) { return nan_or(float_of_half(a)); });
  one<double, uint16_t>(sink, "cvt.f64.f16",
                        [](uint16_t a) { return static_cast<double>(float_of_half(a)); });
  one<float, uint16_t>(sink, "cvt.f32.bf16", [](uint16_t a) { return float_of_bf16(a); });
  one<float, float>(sink, "cvt.f32.f32", [](float a) { return a; });
  one<float, float>(sink, "cvt.ftz.f32.f32", [](float a) { return flush(a); });
  one<float, float>(sink, "cvt.sat.f32.f32", [](float a) { return saturate(a); });
  one<float, float>(sink, "cvt.ftz.sat.f32.f32", [](float a) { return saturate(flush(a)); });
  one<uint32_t, float>(sink, "cvt.rna.tf32.f32", [](float a) { return tf32_from(a, Round::rna); });
}

}  // namespace

void add_convert_lanes(LaneSink& sink) {
  float_to_all_ints<float>(sink, "f32", [](float a) { return static_cast<double>(a); });
  float_to_all_ints<double>(sink, "f64", [](double a) { return a; });
  float_to_all_ints<uint16_t>(sink, "f16", [](uint16_t a) { return static_cast<double>(float_of_half(a)); });
  each_integer([&]<class S>(S, const char* from) {
    int_to_floats<S>(sink, from);
    each_integer([&]<class D>(D, const char* to) { int_to_int<D, S>(sink, to, from); });
  });
  each_mode([&]<Round mode>(const char* round) { integral<mode>(sink, round); }, "i");
  each_mode([&]<Round mode>(const char* round) { narrowing<mode>(sink, round); });
  exact(sink);
}

}  // namespace gacc::emulator
