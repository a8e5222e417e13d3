// f16, bf16 and their packed pairs. Each operation is computed exactly (or to odd) in double and rounded once
// to nearest even, which is the correctly rounded result of the short format.
#include <cmath>

#include "emulator/lane_helpers.h"

namespace gacc::emulator {
using namespace lanes;
namespace {

struct Half {
  static double wide(uint16_t bits) { return float_of_half(bits); }
  static uint16_t narrow(double value) { return half_from(value); }
};
struct Brain {
  static double wide(uint16_t bits) { return float_of_bf16(bits); }
  static uint16_t narrow(double value) { return bf16_from(value); }
};

// The smaller or the larger one; `nan`: a NaN wins against a number, else it loses.
template <class H>
uint16_t extreme(uint16_t a, uint16_t b, bool want_max, bool nan) {
  const double x = H::wide(a), y = H::wide(b);
  if (x != x || y != y) {
    if (nan || (x != x && y != y)) return 0x7fff;
    return x != x ? b : a;
  }
  if (x == y) return (std::signbit(x) != 0) == want_max ? b : a;
  return (x > y) == want_max ? a : b;
}

// Both halves of a 32-bit register.
template <class F>
struct Pair {
  template <class... A>
  uint32_t operator()(A... a) const {
    const uint32_t low = F{}(static_cast<uint16_t>(a)...), high = F{}(static_cast<uint16_t>(a >> 16)...);
    return high << 16 | low;
  }
};

using U16 = uint16_t;
using U32 = uint32_t;

template <class H>
void add_format(LaneSink& sink, const char* type) {
  const auto unary = [&]<class F>(const char* root, F f) {
    entry<U16, U16>(sink, Name(root, ".", type), f);
    entry<U32, U32>(sink, Name(root, ".", type, "x2"), Pair<F>{});
  };
  const auto binary = [&]<class F>(const char* root, F f) {
    entry<U16, U16, U16>(sink, Name(root, ".", type), f);
    entry<U32, U32, U32>(sink, Name(root, ".", type, "x2"), Pair<F>{});
  };
  for (const char* rounding : {"", ".rn"}) {
    binary(Name("add", rounding), [](U16 a, U16 b) { return H::narrow(add_to_odd(H::wide(a), H::wide(b))); });
    binary(Name("sub", rounding),
           [](U16 a, U16 b) { return H::narrow(add_to_odd(H::wide(a), -H::wide(b))); });
    binary(Name("mul", rounding), [](U16 a, U16 b) { return H::narrow(H::wide(a) * H::wide(b)); });
  }
  const auto fma = [](U16 a, U16 b, U16 c) {
    return H::narrow(add_to_odd(H::wide(a) * H::wide(b), H::wide(c)));
  };
  entry<U16, U16, U16, U16>(sink, Name("fma.rn.", type), fma);
  entry<U32, U32, U32, U32>(sink, Name("fma.rn.", type, "x2"), Pair<decltype(fma)>{});
  binary("min", [](U16 a, U16 b) { return extreme<H>(a, b, false, false); });
  binary("max", [](U16 a, U16 b) { return extreme<H>(a, b, true, false); });
  binary("min.NaN", [](U16 a, U16 b) { return extreme<H>(a, b, false, true); });
  binary("max.NaN", [](U16 a, U16 b) { return extreme<H>(a, b, true, true); });
  unary("neg", [](U16 a) { return static_cast<U16>(a ^ 0x8000); });
  unary("abs", [](U16 a) { return static_cast<U16>(a & 0x7fff); });
  each_comparison([&]<class F>(const char* which, F) {
    compare<U16>(sink, Name("setp.", which, ".", type),
                 [](U16 a, U16 b) { return F{}(H::wide(a), H::wide(b)); });
  });
}

}  // namespace

void add_half_lanes(LaneSink& sink) {
  add_format<Half>(sink, "f16");
  add_format<Brain>(sink, "bf16");
}

}  // namespace gacc::emulator
