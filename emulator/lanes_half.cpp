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
  static constexpr uint16_t kInfinity = 0x7c00;
};
struct Brain {
  static double wide(uint16_t bits) { return float_of_bf16(bits); }
  static uint16_t narrow(double value) { return bf16_from(value); }
  static constexpr uint16_t kInfinity = 0x7f80;
};
constexpr uint16_t kNan = 0x7fff;

uint16_t flush_half(uint16_t bits) { return (bits & 0x7c00) == 0 ? bits & 0x8000 : bits; }
template <class H>
bool is_nan(uint16_t a) {
  return (a & 0x7fff) > H::kInfinity;
}

// The scalar functions, over bit patterns.
template <class H>
struct Add {
  uint16_t operator()(uint16_t a, uint16_t b) const { return H::narrow(add_to_odd(H::wide(a), H::wide(b))); }
};
template <class H>
struct Sub {
  uint16_t operator()(uint16_t a, uint16_t b) const { return H::narrow(add_to_odd(H::wide(a), -H::wide(b))); }
};
template <class H>
struct Mul {
  uint16_t operator()(uint16_t a, uint16_t b) const { return H::narrow(H::wide(a) * H::wide(b)); }
};
template <class H>
struct Fma {
  uint16_t operator()(uint16_t a, uint16_t b, uint16_t c) const {
    return H::narrow(add_to_odd(H::wide(a) * H::wide(b), H::wide(c)));
  }
};
template <class H, bool want_max, bool nan>
struct Extreme {
  uint16_t operator()(uint16_t a, uint16_t b) const {
    if (is_nan<H>(a) || is_nan<H>(b)) {
      if (nan || (is_nan<H>(a) && is_nan<H>(b))) return kNan;
      return is_nan<H>(a) ? b : a;
    }
    double x = H::wide(a), y = H::wide(b);
    if (x == y) return (std::signbit(x) != 0) == want_max ? b : a;
    return (x > y) == want_max ? a : b;
  }
};
template <class F>
struct Relu {  // negative results and NaN become +0 (NaN stays the canonical NaN)
  template <class... A>
  uint16_t operator()(A... a) const {
    uint16_t r = F{}(a...);
    return (r & 0x8000) && (r & 0x7fff) <= 0x7f80 ? 0 : r;
  }
};
template <class F>
struct FtzHalf {
  template <class... A>
  uint16_t operator()(A... a) const {
    return flush_half(F{}(flush_half(a)...));
  }
};
template <class F>
struct SatHalf {
  template <class... A>
  uint16_t operator()(A... a) const {
    uint16_t r = F{}(a...);
    return is_nan<Half>(r) || r & 0x8000 ? 0 : r > 0x3c00 ? 0x3c00 : r;
  }
};
struct Negate {
  uint16_t operator()(uint16_t a) const { return a ^ 0x8000; }
};
struct Absolute {
  uint16_t operator()(uint16_t a) const { return a & 0x7fff; }
};
// Both halves of a 32-bit register.
template <class F>
struct Pair {
  template <class... A>
  uint32_t operator()(A... a) const {
    uint32_t low = F{}(static_cast<uint16_t>(a)...), high = F{}(static_cast<uint16_t>(a >> 16)...);
    return high << 16 | low;
  }
};

template <class F>
void both1(LaneSink& sink, const char* root, const char* type) {
  one<uint16_t, uint16_t>(sink, Name(root, ".", type), F{});
  one<uint32_t, uint32_t>(sink, Name(root, ".", type, "x2"), Pair<F>{});
}
template <class F>
void both2(LaneSink& sink, const char* root, const char* type) {
  two<uint16_t, uint16_t, uint16_t>(sink, Name(root, ".", type), F{});
  two<uint32_t, uint32_t, uint32_t>(sink, Name(root, ".", type, "x2"), Pair<F>{});
}
template <class F>
void both3(LaneSink& sink, const char* root, const char* type) {
  three<uint16_t, uint16_t, uint16_t, uint16_t>(sink, Name(root, ".", type), F{});
  three<uint32_t, uint32_t, uint32_t, uint32_t>(sink, Name(root, ".", type, "x2"), Pair<F>{});
}

template <class H>
void half_comparisons(LaneSink& sink, const char* type) {
  each_comparison([&]<class F>(const char* which, F) {
    compare<uint16_t>(sink, Name("setp.", which, ".", type),
                      [](uint16_t a, uint16_t b) { return F{}(H::wide(a), H::wide(b)); });
  });
}

template <class H>
void common(LaneSink& sink, const char* type) {
  both2<Add<H>>(sink, "add", type), both2<Add<H>>(sink, "add.rn", type);
  both2<Sub<H>>(sink, "sub", type), both2<Sub<H>>(sink, "sub.rn", type);
  both2<Mul<H>>(sink, "mul", type), both2<Mul<H>>(sink, "mul.rn", type);
  both3<Fma<H>>(sink, "fma.rn", type), both3<Relu<Fma<H>>>(sink, "fma.rn.relu", type);
  both2<Extreme<H, false, false>>(sink, "min", type), both2<Extreme<H, true, false>>(sink, "max", type);
  both2<Extreme<H, false, true>>(sink, "min.NaN", type), both2<Extreme<H, true, true>>(sink, "max.NaN", type);
  both1<Negate>(sink, "neg", type), both1<Absolute>(sink, "abs", type);
  half_comparisons<H>(sink, type);
}

template <class F>
void variants2(LaneSink& sink, const char* root) {
  both2<FtzHalf<F>>(sink, Name(root, ".ftz"), "f16");
  both2<SatHalf<F>>(sink, Name(root, ".sat"), "f16");
  both2<SatHalf<FtzHalf<F>>>(sink, Name(root, ".ftz.sat"), "f16");
}

}  // namespace

void add_half_lanes(LaneSink& sink) {
  common<Half>(sink, "f16");
  common<Brain>(sink, "bf16");
  for (const char* root : {"add", "add.rn"}) variants2<Add<Half>>(sink, root);
  for (const char* root : {"sub", "sub.rn"}) variants2<Sub<Half>>(sink, root);
  for (const char* root : {"mul", "mul.rn"}) variants2<Mul<Half>>(sink, root);
  both3<FtzHalf<Fma<Half>>>(sink, "fma.rn.ftz", "f16");
  both3<SatHalf<Fma<Half>>>(sink, "fma.rn.sat", "f16");
  both1<FtzHalf<Negate>>(sink, "neg.ftz", "f16");
  both1<FtzHalf<Absolute>>(sink, "abs.ftz", "f16");
  // Within 2^-9.9 and 2^-10.987 on the device; the correctly rounded value here.
  both1<decltype([](uint16_t a) { return half_from(std::exp2(float_of_half(a))); })>(sink, "ex2.approx",
                                                                                     "f16");
  both1<decltype([](uint16_t a) { return half_from(std::tanh(float_of_half(a))); })>(sink, "tanh.approx",
                                                                                     "f16");
  both1<decltype([](uint16_t a) { return bf16_from(std::exp2(float_of_bf16(a))); })>(sink, "ex2.approx.ftz",
                                                                                     "bf16");
  both1<decltype([](uint16_t a) { return bf16_from(std::tanh(float_of_bf16(a))); })>(sink, "tanh.approx",
                                                                                     "bf16");
}

}  // namespace gacc::emulator
