// f32 and f64 lanes that are neither nearest-even nor exact on the device: directed rounding (by the
// processor's rounding mode) and the approximate units. An approximation gives the correctly rounded value,
// which lies within every documented error bound; a kernel that needs the unit's exact bits cannot be checked
// here.
#include <cfenv>
#include <cmath>

#include "emulator/lane_helpers.h"

namespace gacc::emulator {
using namespace lanes;
namespace {

float nan_or(float x) { return x != x ? bits_as<float>(0x7fffffffu) : x; }
double nan_or(double x) { return x; }  // the bits of an f64 NaN are not defined

// Runs a lane function in another rounding mode. The operands are in memory and the call is opaque, so the
// compiler can move no arithmetic past the change of mode.
template <int mode, class F, class T>
void directed2(void* d, const void* const* s, uint32_t mask) {
  std::fesetround(mode);
  lanes2<F, T, T, T>(d, s, mask);
  std::fesetround(FE_TONEAREST);
}
template <int mode, class F, class T>
void directed3(void* d, const void* const* s, uint32_t mask) {
  std::fesetround(mode);
  lanes3<F, T, T, T, T>(d, s, mask);
  std::fesetround(FE_TONEAREST);
}
template <int mode, class F, class T>
void directed1(void* d, const void* const* s, uint32_t mask) {
  std::fesetround(mode);
  lanes1<F, T, T>(d, s, mask);
  std::fesetround(FE_TONEAREST);
}

template <class F>
struct FtzOf {
  template <class... A>
  float operator()(A... a) const {
    return flush(F{}(flush(a)...));
  }
};

template <int mode, class T>
void directed(LaneSink& sink, const char* round, const char* type) {
  uint8_t w = sizeof(T), source[] = {w, w, w};
  auto add = [](T a, T b) { return nan_or(a + b); };
  auto sub = [](T a, T b) { return nan_or(a - b); };
  auto mul = [](T a, T b) { return nan_or(a * b); };
  auto div = [](T a, T b) { return nan_or(a / b); };
  auto fma = [](T a, T b, T c) { return nan_or(std::fma(a, b, c)); };
  auto root = [](T a) { return nan_or(std::sqrt(a)); };
  auto rcp = [](T a) { return nan_or(T{1} / a); };
  auto entry2 = [&]<class F>(const char* op, F) {
    sink.add(Name(op, ".", round, ".", type), &directed2<mode, F, T>, w, source, 2);
    if constexpr (sizeof(T) == 4)
      sink.add(Name(op, ".", round, ".ftz.", type), &directed2<mode, FtzOf<F>, T>, w, source, 2);
  };
  auto entry1 = [&]<class F>(const char* op, F) {
    sink.add(Name(op, ".", round, ".", type), &directed1<mode, F, T>, w, source, 1);
    if constexpr (sizeof(T) == 4)
      sink.add(Name(op, ".", round, ".ftz.", type), &directed1<mode, FtzOf<F>, T>, w, source, 1);
  };
  entry2("add", add), entry2("sub", sub), entry2("mul", mul), entry2("div", div);
  entry1("sqrt", root), entry1("rcp", rcp);
  sink.add(Name("fma.", round, ".", type), &directed3<mode, decltype(fma), T>, w, source, 3);
  if constexpr (sizeof(T) == 4)
    sink.add(Name("fma.", round, ".ftz.", type), &directed3<mode, FtzOf<decltype(fma)>, T>, w, source, 3);
}

template <class F>
void approximate(LaneSink& sink, const char* op, F) {
  one<float, float>(sink, Name(op, ".approx.f32"),
                    [](float a) { return nan_or(static_cast<float>(F{}(double{a}))); });
  one<float, float>(sink, Name(op, ".approx.ftz.f32"),
                    [](float a) { return flush(nan_or(static_cast<float>(F{}(double{flush(a)})))); });
}

}  // namespace

void add_math_lanes(LaneSink& sink) {
  directed<FE_TOWARDZERO, float>(sink, "rz", "f32"), directed<FE_TOWARDZERO, double>(sink, "rz", "f64");
  directed<FE_DOWNWARD, float>(sink, "rm", "f32"), directed<FE_DOWNWARD, double>(sink, "rm", "f64");
  directed<FE_UPWARD, float>(sink, "rp", "f32"), directed<FE_UPWARD, double>(sink, "rp", "f64");
  approximate(sink, "rcp", [](double a) { return 1.0 / a; });
  approximate(sink, "sqrt", [](double a) { return std::sqrt(a); });
  approximate(sink, "rsqrt", [](double a) { return 1.0 / std::sqrt(a); });
  approximate(sink, "ex2", [](double a) { return std::exp2(a); });
  approximate(sink, "lg2", [](double a) { return std::log2(a); });
  approximate(sink, "sin", [](double a) { return std::sin(a); });
  approximate(sink, "cos", [](double a) { return std::cos(a); });
  one<float, float>(sink, "tanh.approx.f32",
                    [](float a) { return nan_or(static_cast<float>(std::tanh(double{a}))); });
  for (const char* kind : {"div.approx", "div.full"}) {
    two<float, float, float>(sink, Name(kind, ".f32"), [](float a, float b) { return nan_or(a / b); });
    two<float, float, float>(sink, Name(kind, ".ftz.f32"),
                             [](float a, float b) { return flush(nan_or(flush(a) / flush(b))); });
  }
  one<double, double>(sink, "rsqrt.approx.f64", [](double a) { return 1.0 / std::sqrt(a); });
  one<double, double>(sink, "rcp.approx.ftz.f64", [](double a) {  // the upper 32 bits only
    if (std::fabs(a) < 0x1p-1022) a = std::copysign(0.0, a);
    return bits_as<double>(bits_as<uint64_t>(1.0 / a) & ~0xffffffffull);
  });
}

}  // namespace gacc::emulator
