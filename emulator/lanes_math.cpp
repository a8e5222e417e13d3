// f32 lanes of the approximate units. An approximation gives the correctly rounded value, which lies within
// every documented error bound; a kernel that needs the unit's exact bits cannot be checked here.
#include <cmath>

#include "emulator/lane_helpers.h"

namespace gacc::emulator {
using namespace lanes;
namespace {

// With .ftz, subnormal inputs and results are zeros of their sign.
template <class F>
void approximate(LaneSink& sink, const char* op, F) {
  one<float, float>(sink, Name(op, ".approx.f32"),
                    [](float a) { return canonical(static_cast<float>(F{}(double{a}))); });
  one<float, float>(sink, Name(op, ".approx.ftz.f32"),
                    [](float a) { return flush(canonical(static_cast<float>(F{}(double{flush(a)})))); });
}

}  // namespace

void add_math_lanes(LaneSink& sink) {
  approximate(sink, "rcp", [](double a) { return 1.0 / a; });
  approximate(sink, "sqrt", [](double a) { return std::sqrt(a); });
  approximate(sink, "rsqrt", [](double a) { return 1.0 / std::sqrt(a); });
  approximate(sink, "ex2", [](double a) { return std::exp2(a); });
  approximate(sink, "lg2", [](double a) { return std::log2(a); });
  for (const char* kind : {"div.approx", "div.full"}) {
    two<float, float, float>(sink, Name(kind, ".f32"), [](float a, float b) { return canonical(a / b); });
    two<float, float, float>(sink, Name(kind, ".ftz.f32"),
                             [](float a, float b) { return flush(canonical(flush(a) / flush(b))); });
  }
}

}  // namespace gacc::emulator
