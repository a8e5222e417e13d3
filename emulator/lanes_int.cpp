// Integer, logic, shift and bit-field lanes: every width, wrapping as PTX says. Compiled once per instruction
// set.
#include <type_traits>

#include "emulator/lane_helpers.h"

namespace gacc::emulator::GACC_LANES_NAMESPACE {
namespace {

template <class T>
constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);

// Twice as wide, of the same sign.
template <class T>
using Wide =
    std::conditional_t<sizeof(T) == 2, std::conditional_t<is_signed<T>, int32_t, uint32_t>,
                       std::conditional_t<sizeof(T) == 4, std::conditional_t<is_signed<T>, int64_t, uint64_t>,
                                          std::conditional_t<is_signed<T>, __int128, unsigned __int128>>>;
// Unsigned of the same width, 4 bytes at least: wraps without undefined behaviour.
template <class T>
using Raw = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
constexpr int bits_of = 8 * sizeof(T);

template <class T>
void arithmetic(LaneSink& sink, const char* type) {
  using R = Raw<T>;
  using W = Wide<T>;
  entry<T, T, T>(sink, Name("add.", type),
                 [](T a, T b) { return static_cast<T>(static_cast<R>(a) + static_cast<R>(b)); });
  entry<T, T, T>(sink, Name("sub.", type),
                 [](T a, T b) { return static_cast<T>(static_cast<R>(a) - static_cast<R>(b)); });
  entry<T, T, T>(sink, Name("mul.lo.", type),
                 [](T a, T b) { return static_cast<T>(static_cast<R>(a) * static_cast<R>(b)); });
  entry<T, T, T>(sink, Name("mul.hi.", type), [](T a, T b) {
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b) >> bits_of<T>);
  });
  entry<T, T, T>(sink, Name("min.", type), [](T a, T b) { return a < b ? a : b; });
  entry<T, T, T>(sink, Name("max.", type), [](T a, T b) { return a > b ? a : b; });
  entry<T, T, T, T>(sink, Name("mad.lo.", type), [](T a, T b, T c) {
    return static_cast<T>(static_cast<R>(a) * static_cast<R>(b) + static_cast<R>(c));
  });
  // The machine's answer to a division by zero is all ones; the warp reports it. INT_MIN / -1 wraps.
  entry<T, T, T>(
      sink, Name("div.", type),
      [](T a, T b) {
        if (b == 0) return static_cast<T>(-1);
        if (is_signed<T> && b == static_cast<T>(-1)) return static_cast<T>(R{0} - static_cast<R>(a));
        return static_cast<T>(a / b);
      },
      true);
  entry<T, T, T>(
      sink, Name("rem.", type),
      [](T a, T b) {
        if (b == 0) return a;
        if (is_signed<T> && b == static_cast<T>(-1)) return T{0};
        return static_cast<T>(a % b);
      },
      true);
  each_order([&]<class F>(const char* which, F f) { compare<T>(sink, Name("setp.", which, ".", type), f); });
  if constexpr (is_signed<T>) {
    entry<T, T>(sink, Name("neg.", type), [](T a) { return static_cast<T>(R{0} - static_cast<R>(a)); });
    entry<T, T>(sink, Name("abs.", type),
                [](T a) { return a < 0 ? static_cast<T>(R{0} - static_cast<R>(a)) : a; });
  }
  entry<T, T, uint32_t>(sink, Name("shr.", type), [](T a, uint32_t b) {
    if (b >= bits_of<T>) return static_cast<T>(is_signed<T> && a < 0 ? -1 : 0);
    return static_cast<T>(a >> b);
  });
}

template <class T>
void widening(LaneSink& sink, const char* type) {
  using W = Wide<T>;
  using R = Raw<W>;
  entry<W, T, T>(sink, Name("mul.wide.", type),
                 [](T a, T b) { return static_cast<W>(static_cast<W>(a) * static_cast<W>(b)); });
  entry<W, T, T, W>(sink, Name("mad.wide.", type), [](T a, T b, W c) {
    return static_cast<W>(static_cast<R>(static_cast<W>(a) * static_cast<W>(b)) + static_cast<R>(c));
  });
}

template <class T>
void bitwise(LaneSink& sink, const char* type) {
  entry<T, T, T>(sink, Name("and.", type), [](T a, T b) { return static_cast<T>(a & b); });
  entry<T, T, T>(sink, Name("or.", type), [](T a, T b) { return static_cast<T>(a | b); });
  entry<T, T, T>(sink, Name("xor.", type), [](T a, T b) { return static_cast<T>(a ^ b); });
  entry<T, T>(sink, Name("not.", type), [](T a) { return static_cast<T>(~a); });
  entry<T, T, uint32_t>(sink, Name("shl.", type),
                        [](T a, uint32_t b) { return b >= bits_of<T> ? T{0} : static_cast<T>(a << b); });
  entry<T, T, uint32_t>(sink, Name("shr.", type),
                        [](T a, uint32_t b) { return b >= bits_of<T> ? T{0} : static_cast<T>(a >> b); });
  compare<T>(sink, Name("setp.eq.", type), [](T a, T b) { return a == b; });
  compare<T>(sink, Name("setp.ne.", type), [](T a, T b) { return a != b; });
}

template <class T>
void counting(LaneSink& sink, const char* type) {
  entry<uint32_t, T>(sink, Name("popc.", type),
                     [](T a) { return static_cast<uint32_t>(__builtin_popcountll(a)); });
  entry<uint32_t, T>(sink, Name("clz.", type), [](T a) {
    return static_cast<uint32_t>(a == 0 ? bits_of<T> : __builtin_clzll(a) - (64 - bits_of<T>));
  });
  entry<T, T>(sink, Name("brev.", type), [](T a) {
    T r = 0;
    for (int i = 0; i < bits_of<T>; ++i) r |= (a >> i & T{1}) << (bits_of<T> - 1 - i);
    return r;
  });
}

template <class T>
void fields(LaneSink& sink, const char* type) {
  // Bits [position, position + length) of a; beyond the top a signed field repeats its sign bit.
  entry<T, T, uint32_t, uint32_t>(sink, Name("bfe.", type), [](T a, uint32_t position, uint32_t length) {
    position &= 0xff, length &= 0xff;
    T r = 0;
    const uint32_t top = position + length - 1 < bits_of<T> - 1u ? position + length - 1 : bits_of<T> - 1u;
    const bool sign = is_signed<T> && length != 0 && (a >> top & 1);
    for (uint32_t i = 0; i < bits_of<T>; ++i) {
      const bool bit = i < length && position + i < bits_of<T> ? (a >> (position + i) & 1) : sign;
      if (bit) r |= static_cast<T>(Raw<T>{1} << i);
    }
    return r;
  });
}

template <class T>
void insertion(LaneSink& sink, const char* type) {
  entry<T, T, T, uint32_t, uint32_t>(
      sink, Name("bfi.", type), [](T a, T b, uint32_t position, uint32_t length) {
        position &= 0xff, length &= 0xff;
        T r = b;
        for (uint32_t i = 0; i < length && position + i < bits_of<T>; ++i) {
          T bit = T{1} << (position + i);
          r = (a >> i & 1) ? static_cast<T>(r | bit) : static_cast<T>(r & ~bit);
        }
        return r;
      });
}

void permutations(LaneSink& sink) {
  entry<uint32_t, uint32_t, uint32_t, uint32_t>(sink, "prmt.b32", [](uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t select = c >> (4 * i) & 15;
      uint32_t byte = bytes >> (8 * (select & 7)) & 0xff;
      if (select & 8) byte = byte & 0x80 ? 0xff : 0;
      r |= byte << (8 * i);
    }
    return r;
  });
  using U = uint32_t;
  entry<U, U, U, U>(sink, "shf.l.wrap.b32",
                    [](U a, U b, U c) { return c & 31 ? b << (c & 31) | a >> (32 - (c & 31)) : b; });
  entry<U, U, U, U>(sink, "shf.r.wrap.b32",
                    [](U a, U b, U c) { return c & 31 ? a >> (c & 31) | b << (32 - (c & 31)) : a; });
  entry<U, U, U, U>(sink, "shf.l.clamp.b32", [](U a, U b, U c) {
    return c >= 32 ? a : c ? b << c | a >> (32 - c) : b;
  });
  entry<U, U, U, U>(sink, "shf.r.clamp.b32", [](U a, U b, U c) {
    return c >= 32 ? b : c ? a >> c | b << (32 - c) : a;
  });
}

template <class T>
void select(LaneSink& sink, const char* type) {
  uint8_t source[] = {sizeof(T), sizeof(T), kPredicate};
  sink.add(
      Name("selp.", type),
      [](void* d, const void* const* s, uint32_t mask) {
        const T* a = static_cast<const T*>(s[0]);
        const T* b = static_cast<const T*>(s[1]);
        const uint32_t p = *static_cast<const uint32_t*>(s[2]);
        T r[kLanes];
        for (int l = 0; l < kLanes; ++l) r[l] = p >> l & 1 ? a[l] : b[l];
        put(d, r, mask);
      },
      sizeof(T), source, 3);
}

template <class F>
void predicate(LaneSink& sink, const char* name, F) {
  uint8_t source[] = {kPredicate, kPredicate};
  using P = const uint32_t*;
  sink.add(
      name, [](void* d, const void* const* s, uint32_t mask) { put_mask(d, F{}(*P(s[0]), *P(s[1])), mask); },
      kPredicate, source, 2);
}

void predicates(LaneSink& sink) {
  predicate(sink, "and.pred", [](uint32_t a, uint32_t b) { return a & b; });
  predicate(sink, "or.pred", [](uint32_t a, uint32_t b) { return a | b; });
  predicate(sink, "xor.pred", [](uint32_t a, uint32_t b) { return a ^ b; });
  uint8_t source[] = {kPredicate};
  sink.add(
      "not.pred",
      [](void* d, const void* const* s, uint32_t mask) {
        put_mask(d, ~*static_cast<const uint32_t*>(s[0]), mask);
      },
      kPredicate, source, 1);
}

}  // namespace

void add_integer_lanes(LaneSink& sink) {
  arithmetic<uint16_t>(sink, "u16"), arithmetic<uint32_t>(sink, "u32"), arithmetic<uint64_t>(sink, "u64");
  arithmetic<int16_t>(sink, "s16"), arithmetic<int32_t>(sink, "s32"), arithmetic<int64_t>(sink, "s64");
  widening<uint16_t>(sink, "u16"), widening<uint32_t>(sink, "u32");
  widening<int16_t>(sink, "s16"), widening<int32_t>(sink, "s32");
  bitwise<uint16_t>(sink, "b16"), bitwise<uint32_t>(sink, "b32"), bitwise<uint64_t>(sink, "b64");
  counting<uint32_t>(sink, "b32"), counting<uint64_t>(sink, "b64");
  fields<uint32_t>(sink, "u32"), fields<uint64_t>(sink, "u64"), fields<int32_t>(sink, "s32"),
      fields<int64_t>(sink, "s64");
  insertion<uint32_t>(sink, "b32"), insertion<uint64_t>(sink, "b64");
  permutations(sink);
  for (const char* type : {"b16", "u16", "s16"}) select<uint16_t>(sink, type);
  for (const char* type : {"b32", "u32", "s32", "f32"}) select<uint32_t>(sink, type);
  for (const char* type : {"b64", "u64", "s64"}) select<uint64_t>(sink, type);
  predicates(sink);
}

}  // namespace gacc::emulator::GACC_LANES_NAMESPACE
