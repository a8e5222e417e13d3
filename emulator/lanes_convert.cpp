// cvt in all the pairs and rounding modes accepted. Source and destination lanes have their own type's width;
// the decoder widens registers that are larger. A float becomes an integer with saturation.
#include <cmath>
#include <limits>

#include "emulator/lane_helpers.h"

namespace gacc::emulator {
using namespace lanes;
namespace {

// Rounding to integers: to the nearest even, toward zero, down, up.
double rni(double x) { return std::nearbyint(x); }
double rzi(double x) { return std::trunc(x); }
double rmi(double x) { return std::floor(x); }
double rpi(double x) { return std::ceil(x); }
template <class F>
void each_mode(F add) {
  add.template operator()<rni>("rni"), add.template operator()<rzi>("rzi");
  add.template operator()<rmi>("rmi"), add.template operator()<rpi>("rpi");
}
// Calls add(T{}, name) for every integer type.
template <class F>
void each_integer(F add) {
  add(uint8_t{}, "u8"), add(int8_t{}, "s8"), add(uint16_t{}, "u16"), add(int16_t{}, "s16");
  add(uint32_t{}, "u32"), add(int32_t{}, "s32"), add(uint64_t{}, "u64"), add(int64_t{}, "s64");
}

template <class T>
T saturated(double x) {
  using L = std::numeric_limits<T>;
  // A NaN gives 0, but the top bit alone where the result has 64 bits.
  if (x != x) return sizeof(T) == 8 ? static_cast<T>(uint64_t{1} << 63) : T{0};
  if (x <= static_cast<double>(L::min())) return L::min();
  if (x >= std::ldexp(1.0, L::digits)) return L::max();
  return static_cast<T>(x);
}

// `wide` gives a float or a half as a number.
template <class S, class W>
void float_to_integers(LaneSink& sink, const char* from, W) {
  each_mode([&]<double (*integral)(double)>(const char* round) {
    each_integer([&]<class T>(T, const char* to) {
      entry<T, S>(sink, Name("cvt.", round, ".", to, ".", from),
                  [](S a) { return saturated<T>(integral(W{}(a))); });
    });
  });
}

template <class S>
void from_integer(LaneSink& sink, const char* from) {
  entry<float, S>(sink, Name("cvt.rn.f32.", from), [](S a) { return static_cast<float>(a); });
  // By way of a double: the integers that it rounds, above 2^53, are all beyond f16.
  entry<uint16_t, S>(sink, Name("cvt.rn.f16.", from), [](S a) { return half_from(static_cast<double>(a)); });
  each_integer([&]<class D>(D, const char* to) {
    entry<D, S>(sink, Name("cvt.", to, ".", from), [](S a) { return static_cast<D>(a); });
  });
}

}  // namespace

void add_convert_lanes(LaneSink& sink) {
  float_to_integers<float>(sink, "f32", [](float a) { return static_cast<double>(a); });
  float_to_integers<uint16_t>(sink, "f16", [](uint16_t a) { return static_cast<double>(float_of_half(a)); });
  each_integer([&]<class S>(S, const char* from) { from_integer<S>(sink, from); });
  each_mode([&]<double (*integral)(double)>(const char* round) {
    entry<float, float>(sink, Name("cvt.", round, ".f32.f32"),
                        [](float a) { return canonical(static_cast<float>(integral(a))); });
    entry<uint16_t, uint16_t>(sink, Name("cvt.", round, ".f16.f16"),
                              [](uint16_t a) { return half_from(integral(float_of_half(a))); });
  });
  entry<float, uint16_t>(sink, "cvt.f32.f16", [](uint16_t a) { return canonical(float_of_half(a)); });
  entry<float, uint16_t>(sink, "cvt.f32.bf16", [](uint16_t a) { return float_of_bf16(a); });
  entry<uint16_t, float>(sink, "cvt.rn.f16.f32", [](float a) { return half_from(a); });
  entry<uint16_t, float>(sink, "cvt.rn.bf16.f32", [](float a) { return bf16_from(a); });
  // The first source goes to the upper half.
  using U = uint32_t;
  entry<U, float, float>(sink, "cvt.rn.f16x2.f32",
                         [](float a, float b) { return U{half_from(a)} << 16 | half_from(b); });
  entry<U, float, float>(sink, "cvt.rn.bf16x2.f32",
                         [](float a, float b) { return U{bf16_from(a)} << 16 | bf16_from(b); });
}

}  // namespace gacc::emulator
