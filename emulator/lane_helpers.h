// Makes a lane function and a table entry of a scalar function. Included inside the namespace of a lane file, so that
// every file has its own copies (they are compiled for different instruction sets).
#include <cstring>
#include <utility>

#include "emulator/lane_ops.h"
#include "emulator/numbers.h"

#ifndef GACC_LANES_NAMESPACE
#define GACC_LANES_NAMESPACE lanes
#endif

namespace gacc::emulator::GACC_LANES_NAMESPACE {
namespace {

constexpr uint32_t kNan32 = 0x7fffffff;  // the NaN that PTX's f32 arithmetic makes
inline float canonical(float x) { return x != x ? bits_as<float>(kNan32) : x; }

template <class D>
inline void put(void* d, const D* r, uint32_t mask) {
  D* out = static_cast<D*>(d);
  if (mask == ~0u)
    std::memcpy(out, r, sizeof(D) * kLanes);
  else
    for (int l = 0; l < kLanes; ++l) out[l] = mask >> l & 1 ? r[l] : out[l];
}
inline void put_mask(void* d, uint32_t bits, uint32_t mask) {
  uint32_t& out = *static_cast<uint32_t*>(d);
  out = (out & ~mask) | (bits & mask);
}

template <class F, class D, class... S>
inline void apply(void* d, uint32_t mask, const S*... s) {
  D r[kLanes];
  for (int l = 0; l < kLanes; ++l) r[l] = F{}(s[l]...);
  put(d, r, mask);
}
template <class F, class D, class... S>
void over_lanes(void* d, const void* const* s, uint32_t mask) {
  [&]<size_t... i>(std::index_sequence<i...>) { apply<F, D>(d, mask, static_cast<const S*>(s[i])...); }
  (std::index_sequence_for<S...>());
}
template <class F, class A>
void compare2(void* d, const void* const* s, uint32_t mask) {
  const A* a = static_cast<const A*>(s[0]);
  const A* b = static_cast<const A*>(s[1]);
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; ++l) bits |= static_cast<uint32_t>(F{}(a[l], b[l])) << l;
  put_mask(d, bits, mask);
}

// Table entries from a lambda without captures: D(S...), or whether two of A compare.
template <class D, class... S, class F>
void entry(LaneSink& sink, const char* name, F, bool divides = false) {
  const uint8_t source[] = {sizeof(S)...};
  sink.add(name, &over_lanes<F, D, S...>, sizeof(D), source, sizeof...(S), divides);
}
template <class A, class F>
void compare(LaneSink& sink, const char* name, F) {
  const uint8_t source[] = {sizeof(A), sizeof(A)};
  sink.add(name, &compare2<F, A>, kPredicate, source, 2);
}

// A spelling put together from pieces, alive until the end of the full expression.
struct Name {
  char text[64];
  Name(const char* a, const char* b, const char* c = "", const char* d = "", const char* e = "",
       const char* f = "") {
    size_t n = 0;
    for (const char* part : {a, b, c, d, e, f})
      while (*part && n < sizeof text - 1) text[n++] = *part++;
    text[n] = 0;
  }
  operator const char*() const { return text; }
};

// Calls add(name, comparison) for all of integers.
template <class F>
void each_order(F add) {
  add("eq", [](auto a, auto b) { return a == b; });
  add("ne", [](auto a, auto b) { return a < b || a > b; });
  add("lt", [](auto a, auto b) { return a < b; });
  add("le", [](auto a, auto b) { return a <= b; });
  add("gt", [](auto a, auto b) { return a > b; });
  add("ge", [](auto a, auto b) { return a >= b; });
}
// The same for all of floats: those that unordered numbers fulfil as well (..u), and whether two are ordered.
template <class F>
void each_comparison(F add) {
  each_order(add);
  add("equ", [](auto a, auto b) { return !(a < b || a > b); });
  add("neu", [](auto a, auto b) { return a != b; });
  add("ltu", [](auto a, auto b) { return !(a >= b); });
  add("leu", [](auto a, auto b) { return !(a > b); });
  add("gtu", [](auto a, auto b) { return !(a <= b); });
  add("geu", [](auto a, auto b) { return !(a < b); });
  add("num", [](auto a, auto b) { return !__builtin_isnan(a) && !__builtin_isnan(b); });
  add("nan", [](auto a, auto b) { return __builtin_isnan(a) || __builtin_isnan(b); });
}

}  // namespace
}  // namespace gacc::emulator::GACC_LANES_NAMESPACE
