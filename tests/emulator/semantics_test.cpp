// Every arithmetic spelling that the emulator accepts, against a second reading of the PTX ISA that is
// written as differently as possible: numbers are exact (128-bit integers, 113-bit reals with the rest's sign
// kept) and rounded once, by one function for all formats. An entry that this file does not know fails the
// test, so whatever is added needs its meaning here. Not confirmed on hardware. mma and ldmatrix:
// opcodes_warp_test.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <cmath>
#include <cstring>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "emulator/lane_ops.h"

namespace gacc::emulator {
namespace {

using Real = __float128;
using Words = std::vector<std::string>;
using Int = __int128;

struct Format {
  int bits, precision, least;  // precision with the leading 1; exponent of the smallest normal number
};
constexpr Format kF16{16, 11, -14}, kBf16{16, 8, -126}, kF32{32, 24, -126};
const Format* format_of(const std::string& type) {
  if (type == "f16" || type == "f16x2") return &kF16;
  if (type == "bf16" || type == "bf16x2") return &kBf16;
  return type == "f32" ? &kF32 : nullptr;
}

// An exact number: value + something of rest's sign that is smaller than any digit of value.
struct Number {
  bool nan = false, infinite = false, negative = false;
  Real value = 0;
  int rest = 0;
};

Real power(int exponent) {
  Real x = 1;
  for (; exponent > 0; --exponent) x *= 2;
  for (; exponent < 0; ++exponent) x /= 2;
  return x;
}

Number decode(uint64_t bits, const Format& f) {
  const int fraction = f.precision - 1, exponents = f.bits - f.precision;
  const uint64_t mantissa = bits & ((uint64_t{1} << fraction) - 1);
  const auto exponent = static_cast<int>(bits >> fraction & ((uint64_t{1} << exponents) - 1));
  Number n;
  n.negative = bits >> (f.bits - 1) & 1;
  if (exponent == (1 << exponents) - 1) {
    (mantissa != 0 ? n.nan : n.infinite) = true;
    return n;
  }
  const Real whole = static_cast<Real>(exponent == 0 ? mantissa : mantissa | uint64_t{1} << fraction);
  n.value = whole * power(std::max(exponent, 1) - 1 + f.least - fraction);
  if (n.negative) n.value = -n.value;
  return n;
}

uint64_t nan_of(const Format& f) { return (uint64_t{1} << (f.bits - 1)) - 1; }

// `mode`: n nearest even, z to zero, m down, p up, a nearest away.
uint64_t encode(const Number& n, const Format& f, char mode) {
  const int fraction = f.precision - 1;
  const uint64_t sign = uint64_t{n.negative} << (f.bits - 1);
  const uint64_t infinity = ((uint64_t{1} << (f.bits - f.precision)) - 1) << fraction;
  if (n.nan) return nan_of(f);
  if (n.infinite) return sign | infinity;
  Real size = n.value < 0 ? -n.value : n.value;
  const int rest = n.value < 0 ? -n.rest : n.rest;
  if (size == 0) return sign;
  int exponent = 0;  // size = 1.x * 2^exponent
  std::frexp(static_cast<long double>(size), &exponent);
  --exponent;
  if (size < power(exponent)) --exponent;
  if (size >= power(exponent + 1)) ++exponent;
  exponent = std::max(exponent, f.least);
  const Real scaled = size / power(exponent - fraction);
  auto whole = static_cast<uint64_t>(scaled);
  const Real left = scaled - static_cast<Real>(whole);
  if (rest < 0 && left == 0) {  // just below a representable number
    if (whole == uint64_t{1} << fraction && exponent > f.least) --exponent, whole *= 2;
    whole -= 1;
    const bool up = mode == 'n' || mode == 'a' || (mode == 'p' && !n.negative) || (mode == 'm' && n.negative);
    whole += up;
  } else if (left > 0 || rest > 0) {
    const bool above = left > 0.5 || (left == 0.5 && rest > 0), tie = left == 0.5 && rest == 0;
    const bool up = mode == 'n'   ? above || (tie && whole % 2 == 1)
                    : mode == 'a' ? above || tie
                    : mode == 'p' ? !n.negative
                                  : mode == 'm' && n.negative;
    whole += up;
  }
  // A carry into the next exponent comes out right, because the exponent stands above the fraction.
  uint64_t bits =
      whole >> fraction == 0 ? whole : (static_cast<uint64_t>(exponent - f.least) << fraction) + whole;
  if (bits >= infinity) {
    const bool over =
        mode == 'n' || mode == 'a' || (mode == 'p' && !n.negative) || (mode == 'm' && n.negative);
    bits = over ? infinity : infinity - 1;
  }
  return sign | bits;
}

Number sum(const Number& a, const Number& b, char mode) {
  if (a.nan || b.nan || (a.infinite && b.infinite && a.negative != b.negative)) return {.nan = true};
  if (a.infinite) return a;
  if (b.infinite) return b;
  Number n;
  n.value = a.value + b.value;
  const Real back = n.value - a.value, rest = (a.value - (n.value - back)) + (b.value - back);
  n.rest = rest > 0 ? 1 : rest < 0 ? -1 : 0;
  n.negative = n.value < 0;
  if (n.value == 0) n.negative = a.negative && b.negative ? true : mode == 'm' && a.negative != b.negative;
  return n;
}
Number product(const Number& a, const Number& b) {
  const bool zero = (!a.infinite && a.value == 0) || (!b.infinite && b.value == 0);
  if (a.nan || b.nan || ((a.infinite || b.infinite) && zero)) return {.nan = true};
  Number n;
  n.negative = a.negative != b.negative;
  n.infinite = a.infinite || b.infinite;
  if (!n.infinite) n.value = a.value * b.value;
  return n;
}
Number quotient(const Number& a, const Number& b) {
  const bool zero_a = !a.infinite && a.value == 0, zero_b = !b.infinite && b.value == 0;
  if (a.nan || b.nan || (zero_a && zero_b) || (a.infinite && b.infinite)) return {.nan = true};
  Number n;
  n.negative = a.negative != b.negative;
  n.infinite = a.infinite || zero_b;
  if (!n.infinite && !b.infinite) n.value = a.value / b.value;
  return n;
}
Number root(const Number& a) {
  if (a.nan || (a.negative && (a.infinite || a.value != 0))) return {.nan = true};
  if (a.infinite || a.value == 0) return a;
  Number n;
  n.value = std::sqrt(static_cast<long double>(a.value));
  for (int i = 0; i < 2; ++i) n.value = (n.value + a.value / n.value) / 2;
  const Real error = a.value - n.value * n.value;
  n.rest = error > 0 ? 1 : error < 0 ? -1 : 0;
  return n;
}

bool has(const Words& words, const char* what) {
  return std::find(words.begin(), words.end(), what) != words.end();
}
char rounding(const Words& words) {
  for (const std::string& w : words) {
    if (w.size() >= 2 && w.size() <= 3 && w[0] == 'r' && std::strchr("nzmpa", w[1]) && w != "rem")
      return w == "rna" ? 'a' : w[1];
  }
  return 'n';
}
uint64_t flushed(uint64_t bits, const Format& f) {
  const uint64_t magnitude = bits & ((uint64_t{1} << (f.bits - 1)) - 1);
  return magnitude >> (f.precision - 1) == 0 ? bits & ~((uint64_t{1} << (f.bits - 1)) - 1) : bits;
}
// One half or the whole register of a floating-point op; nothing when this is none.
std::optional<uint64_t> real_op(const Words& w, const Format& f, std::vector<uint64_t> bits) {
  const std::string& op = w[0];
  const char mode = rounding(w);
  const uint64_t sign = uint64_t{1} << (f.bits - 1);
  if (has(w, "ftz"))
    for (uint64_t& b : bits) b = flushed(b, f);
  std::vector<Number> x;
  for (const uint64_t b : bits) x.push_back(decode(b, f));
  const auto finish = [&](const Number& n) {
    uint64_t result = encode(n, f, mode);
    if (has(w, "ftz")) result = flushed(result, f);
    return result;
  };
  const auto minus = [](Number n) {
    n.value = -n.value;
    n.negative = !n.negative;
    return n;
  };
  if (op == "add") return finish(sum(x[0], x[1], mode));
  if (op == "sub") return finish(sum(x[0], minus(x[1]), mode));
  if (op == "mul") return finish(product(x[0], x[1]));
  if (op == "div") return finish(quotient(x[0], x[1]));
  if (op == "fma") return finish(sum(product(x[0], x[1]), x[2], mode));
  if (op == "sqrt") return finish(root(x[0]));
  if (op == "rcp") return finish(quotient({.value = 1}, x[0]));
  if (op == "neg") return x[0].nan && f.bits == 16 ? bits[0] ^ sign : bits[0] ^ sign;
  if (op == "abs") return bits[0] & ~sign;
  if (op == "copysign") return (bits[0] & sign) | (bits[1] & ~sign);
  if (op != "min" && op != "max") return std::nullopt;
  if (x[0].nan || x[1].nan) {
    if (has(w, "NaN") || (x[0].nan && x[1].nan)) return nan_of(f);
    return x[0].nan ? bits[1] : bits[0];
  }
  const auto below = [](const Number& a, const Number& b) {  // -0 < +0
    if (a.infinite || b.infinite)
      return (a.infinite ? (a.negative ? -1 : 1) : 0) < (b.infinite ? (b.negative ? -1 : 1) : 0);
    return a.value < b.value || (a.value == 0 && b.value == 0 && a.negative && !b.negative);
  };
  return below(x[0], x[1]) == (op == "min") ? bits[0] : bits[1];
}

// ---- integers

struct Integer {
  int bits;
  bool sign;
};
std::optional<Integer> integer_of(const std::string& type) {
  if (type.size() < 2 || !std::strchr("usb", type[0]) || !std::isdigit(type[1]) ||
      type.find('x') != std::string::npos)
    return std::nullopt;
  return Integer{std::stoi(type.substr(1)), type[0] == 's'};
}
Int value_of(uint64_t bits, Integer t) {
  Int v = static_cast<Int>(t.bits == 64 ? bits : bits & ((uint64_t{1} << t.bits) - 1));
  if (t.sign && (v >> (t.bits - 1) & 1)) v -= Int{1} << t.bits;
  return v;
}
uint64_t cut(Int v, int bits) {
  const auto low = static_cast<uint64_t>(static_cast<unsigned __int128>(v));
  return bits == 64 ? low : low & ((uint64_t{1} << bits) - 1);
}

std::optional<uint64_t> integer_op(const Words& w, Integer t, const std::vector<uint64_t>& b) {
  const std::string &op = w[0], how = w.size() > 2 ? w[1] : "";
  std::vector<Int> x;
  for (const uint64_t bits : b) x.push_back(value_of(bits, t));
  const int n = t.bits;
  const uint32_t c32 = b.size() > 2 ? static_cast<uint32_t>(b[2]) : 0,
                 b32 = b.size() > 1 ? static_cast<uint32_t>(b[1]) : 0;
  if (op == "add") return cut(x[0] + x[1], n);
  if (op == "sub") return cut(x[0] - x[1], n);
  if (op == "mul" || op == "mad") {
    // 64 x 64 bits overflow 128 only in sign: shift the halves by hand.
    const Int p =
        static_cast<Int>(static_cast<unsigned __int128>(x[0]) * static_cast<unsigned __int128>(x[1]));
    const Int add = op == "mul" ? 0 : how == "wide" ? value_of(b[2], {2 * n, t.sign}) : x[2];
    const Int high = t.sign ? p >> n : static_cast<Int>(static_cast<unsigned __int128>(p) >> n);
    return how == "lo" ? cut(p + add, n) : how == "hi" ? cut(high + add, n) : cut(p + add, 2 * n);
  }
  if (op == "min") return cut(std::min(x[0], x[1]), n);
  if (op == "max") return cut(std::max(x[0], x[1]), n);
  if (op == "div") return x[1] == 0 ? cut(-1, n) : cut(x[0] / x[1], n);
  if (op == "rem") return x[1] == 0 ? cut(x[0], n) : cut(x[0] % x[1], n);
  if (op == "neg") return cut(-x[0], n);
  if (op == "abs") return cut(x[0] < 0 ? -x[0] : x[0], n);
  if (op == "and") return b[0] & b[1];
  if (op == "or") return b[0] | b[1];
  if (op == "xor") return b[0] ^ b[1];
  if (op == "not") return cut(~x[0], n);
  if (op == "shl") return b32 >= 64 ? 0 : b32 >= static_cast<uint32_t>(n) ? 0 : cut(x[0] << b32, n);
  if (op == "shr") return cut(x[0] >> std::min<uint32_t>(b32, 100), n);
  if (op == "popc" || op == "clz" || op == "brev") {
    const Int v = cut(x[0], n);
    int ones = 0, top = -1;
    Int turned = 0;
    for (int i = 0; i < n; ++i) {
      if (!(v >> i & 1)) continue;
      ++ones;
      top = i;
      turned |= Int{1} << (n - 1 - i);
    }
    if (op == "popc") return static_cast<uint64_t>(ones);
    if (op == "clz") return static_cast<uint64_t>(n - 1 - top);
    return cut(turned, n);
  }
  if (op == "bfe") {
    const int at = static_cast<int>(b32 & 255), length = static_cast<int>(c32 & 255);
    if (length == 0) return 0;
    const int top = std::min(at + length - 1, n - 1);
    const Int all = t.sign && (cut(x[0], n) >> top & 1) ? -1 : 0;
    Int r = all;
    for (int i = 0; i < std::min(length, n); ++i) {
      const bool bit = at + i < n ? (cut(x[0], n) >> (at + i) & 1) : all != 0;
      r = (r & ~(Int{1} << i)) | (Int{bit} << i);
    }
    return cut(r, n);
  }
  if (op == "bfi") {
    const int at = static_cast<int>(c32 & 255), length = static_cast<int>(b[3] & 255);
    Int r = cut(x[1], n);
    for (int i = 0; i < length && at + i < n; ++i)
      r = (r & ~(Int{1} << (at + i))) | (Int{i < n && (cut(x[0], n) >> i & 1)} << (at + i));
    return cut(r, n);
  }
  if (op == "prmt") {
    uint8_t bytes[8];
    std::memcpy(bytes, &b[0], 4), std::memcpy(bytes + 4, &b[1], 4);
    uint64_t r = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibble = c32 >> 4 * i & 15;
      const uint8_t byte = bytes[nibble & 7];
      r |= static_cast<uint64_t>(nibble < 8 ? byte : byte >= 128 ? 255 : 0) << 8 * i;
    }
    return r;
  }
  if (op == "shf") {  // the pair b:a, shifted
    const uint64_t pair = b[1] << 32 | b[0];
    const uint32_t by = w[2] == "wrap" ? c32 & 31 : std::min(c32, 32U);
    return w[1] == "l" ? (by == 32 ? b[0] : static_cast<uint32_t>(pair << by >> 32))
                       : static_cast<uint32_t>(pair >> by);
  }
  return std::nullopt;
}

// ---- comparisons: true or false

std::optional<bool> compared(const std::string& how, int order, bool unordered) {
  const std::string base = how.size() == 3 && how[2] == 'u' ? how.substr(0, 2) : how;
  if (how == "num") return !unordered;
  if (how == "nan") return unordered;
  if (unordered) return base != how;
  if (base == "eq") return order == 0;
  if (base == "ne") return order != 0;
  if (base == "lt") return order < 0;
  if (base == "le") return order <= 0;
  if (base == "gt") return order > 0;
  if (base == "ge") return order >= 0;
  return std::nullopt;
}

std::optional<bool> truth_op(const Words& w, const std::vector<uint64_t>& b) {
  const std::string& type = w.back();
  if (type == "pred") {
    if (w[0] == "not") return !b[0];
    return w[0] == "and" ? b[0] && b[1] : w[0] == "or" ? b[0] || b[1] : b[0] != b[1];
  }
  const Format* f = format_of(type);
  if (w[0] != "setp") return std::nullopt;
  if (f != nullptr) {
    const auto at = [&](int i) { return decode(has(w, "ftz") ? flushed(b[i], *f) : b[i], *f); };
    const Number x = at(0), y = at(1);
    const auto key = [](const Number& n) {
      return n.infinite ? (n.negative ? -power(2000) : power(2000)) : n.value;
    };
    return compared(w[1], key(x) < key(y) ? -1 : key(x) > key(y), x.nan || y.nan);
  }
  const Integer t = *integer_of(type);
  const Int x = value_of(b[0], t), y = value_of(b[1], t);
  return compared(w[1], x < y ? -1 : x > y, false);
}

// ---- conversions: cvt[.round].TO.FROM

std::optional<uint64_t> convert(const Words& w, const std::vector<uint64_t>& b) {
  const std::string to = w[w.size() - 2], from = w.back();
  const Format *f = format_of(from), *g = format_of(to);
  const std::optional<Integer> s = integer_of(from), d = integer_of(to);
  const bool ftz = has(w, "ftz"), integral = has(w, "rni") || has(w, "rzi") || has(w, "rmi") || has(w, "rpi");
  if (s && d) {
    Int v = value_of(b[0], *s);
    return cut(v, d->bits);
  }
  const auto read = [&](uint64_t bits) {
    return s ? Number{.negative = value_of(bits, *s) < 0, .value = static_cast<Real>(value_of(bits, *s))}
             : decode(ftz && f->bits == 32 ? flushed(bits, *f) : bits, *f);
  };
  Number n = read(b[0]);
  if (integral) {  // to a whole number, in the source's range
    const char mode = rounding(w);
    if (!n.nan && !n.infinite && (n.value < 0 ? -n.value : n.value) < power(70)) {
      Int whole = static_cast<Int>(n.value);
      const Real left = n.value - static_cast<Real>(whole);
      if (mode == 'n') {
        const Real size = left < 0 ? -left : left;
        if (size > 0.5 || (size == 0.5 && whole % 2 != 0)) whole += left < 0 ? -1 : 1;
      } else if (mode == 'm') {
        whole -= left < 0;
      } else if (mode == 'p') {
        whole += left > 0;
      }
      n.value = static_cast<Real>(whole);
    }
    if (g != nullptr) return encode(n, *g, 'n');
    if (n.nan) return d->bits == 64 ? uint64_t{1} << (d->bits - 1) : 0;
    const Int low = d->sign ? -(Int{1} << (d->bits - 1)) : 0, high = (Int{1} << (d->bits - d->sign)) - 1;
    if (n.infinite) return cut(n.negative ? low : high, d->bits);
    return cut(n.value < static_cast<Real>(low)    ? low
               : n.value > static_cast<Real>(high) ? high
                                                   : static_cast<Int>(n.value),
               d->bits);
  }
  const char mode = rounding(w);
  if (g == nullptr) return std::nullopt;
  const auto finish = [&](const Number& x) {
    uint64_t r = encode(x, *g, mode);
    // Moves within a format keep a NaN's bits, as do widenings that the hardware does by shifting.
    if (ftz && g->bits == 32) r = flushed(r, *g);
    return r;
  };
  if (to == "f16x2" || to == "bf16x2") return finish(n) << 16 | finish(read(b[1]));
  return finish(n);
}

// ---- approximations: within what the ISA documents

std::optional<double> approximated(const std::string& op, double x, double y) {
  if (op == "rcp") return 1 / x;
  if (op == "sqrt") return std::sqrt(x);
  if (op == "rsqrt") return 1 / std::sqrt(x);
  if (op == "ex2") return std::exp2(x);
  if (op == "lg2") return std::log2(x);
  if (op == "div") return x / y;
  return std::nullopt;
}

double plain(const Number& n) {
  if (n.nan) return NAN;
  return n.infinite                   ? (n.negative ? -INFINITY : INFINITY)
         : n.negative && n.value == 0 ? -0.0
                                      : static_cast<double>(n.value);
}

bool near(const Words& w, const Format& f, const std::vector<uint64_t>& bits, uint64_t found) {
  std::vector<double> x;
  for (const uint64_t b : bits) x.push_back(plain(decode(has(w, "ftz") ? flushed(b, f) : b, f)));
  const double want = *approximated(w[0], x[0], x.size() > 1 ? x[1] : 0), got = plain(decode(found, f));
  if (std::isnan(want)) return std::isnan(got);
  const double largest =
      plain(decode((((uint64_t{1} << (f.bits - f.precision)) - 1) << (f.precision - 1)) - 1, f));
  if (std::abs(want) > largest) return std::isinf(got) && std::signbit(got) == std::signbit(want);
  constexpr double bound = 0x1p-20;  // relative, and for the logarithm absolute
  const double least = static_cast<double>(power(std::max(f.least, -1020)));
  return std::abs(got - want) <= bound * std::max({std::abs(want), w[0] == "lg2" ? 1.0 : 0.0}) +
                                     (std::abs(want) < least * 2 ? least : 0);
}

// ---- the table

std::vector<uint64_t> values_for(int bytes, const std::string& type) {
  const Format* f = format_of(type);
  std::vector<uint64_t> values;
  if (f == nullptr || type.find("x2") != std::string::npos) {
    values = {0,
              1,
              2,
              5,
              8,
              31,
              32,
              33,
              40,
              63,
              100,
              0x7f,
              0x80,
              0xff,
              0x1234,
              0x7fff,
              0x8000,
              0xfffe,
              0xffff,
              0x9999,
              0x12345678,
              0x7fffffff,
              0x80000000,
              0xfffffffe,
              0xffffffff,
              0x3c00bc00,
              0x7bff0001,
              0x123456789abcdef0,
              0x7fffffffffffffff,
              0x8000000000000000,
              0xfffffffffffffffe,
              0xffffffffffffffff};
  } else {
    for (const double x : {0.0, 1.0, 1.5, 2.5, 3.5, 0.5, 3.0, 1 / 3.0, 0.1, 7.0, 255.5, 300.0, 65519.0,
                           65520.0, 3e9, 5e9, 1e19, 1e30, 1e38})
      values.push_back(encode({.value = static_cast<Real>(x)}, *f, 'n'));
    const uint64_t infinity = ((uint64_t{1} << (f->bits - f->precision)) - 1) << (f->precision - 1);
    const uint64_t one = encode({.value = 1}, *f, 'n');
    values.insert(values.end(),
                  {1, 2, (uint64_t{1} << (f->precision - 1)) - 1, uint64_t{1} << (f->precision - 1), one + 1,
                   one - 1, infinity - 1, infinity, nan_of(*f)});
    const size_t count = values.size();
    for (size_t i = 0; i < count; ++i)
      if (values[i] != nan_of(*f)) values.push_back(values[i] | uint64_t{1} << (f->bits - 1));
  }
  for (uint64_t& v : values)
    if (bytes < 8) v &= (uint64_t{1} << 8 * bytes) - 1;
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Words split(const std::string& name) {
  Words words;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    words.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

uint64_t run(const LaneOp& op, const std::vector<uint64_t>& sources) {
  alignas(64) uint8_t data[5][8 * kLanes] = {};
  const void* pointers[4];
  for (size_t i = 0; i < sources.size(); ++i) {
    const uint64_t mask = sources[i] ? 0xffffffff : 0;
    if (op.source[i] == kPredicate) std::memcpy(data[i], &mask, 4);
    if (op.source[i] != kPredicate) std::memcpy(data[i] + 3 * op.source[i], &sources[i], op.source[i]);
    pointers[i] = data[i];
  }
  op.fn(data[4], pointers, 1U << 3);
  uint64_t result = 0;
  if (op.result == kPredicate) {
    uint32_t mask = 0;
    std::memcpy(&mask, data[4], 4);
    return mask >> 3 & 1;
  }
  std::memcpy(&result, data[4] + 3 * op.result, op.result);
  return result;
}

// Whether `found` is what the op gives; nothing when the op is not known here.
std::optional<bool> right(const Words& w, const std::vector<uint64_t>& b, uint64_t found, uint64_t& want) {
  const std::string& type = w.back();
  const Format* f = format_of(type);
  want = 0;
  if (w[0] == "selp")
    want = b[2] ? b[0] : b[1];
  else if (w[0] == "setp" || type == "pred") {
    const std::optional<bool> truth = truth_op(w, b);
    if (!truth) return std::nullopt;
    want = *truth;
  } else if (w[0] == "cvt") {
    const std::optional<uint64_t> bits = convert(w, b);
    if (!bits) return std::nullopt;
    want = *bits;
    const Format* g = format_of(w[w.size() - 2]);
    if (g != nullptr && g->bits != 16 && decode(want, *g).nan) return decode(found, *g).nan;
  } else if (has(w, "approx") || has(w, "full")) {
    return near(w, *f, b, found);
  } else if (f != nullptr) {
    const bool pair = type.find("x2") != std::string::npos;
    std::vector<uint64_t> low, high;
    for (const uint64_t x : b) low.push_back(pair ? x & 0xffff : x), high.push_back(x >> 16 & 0xffff);
    const std::optional<uint64_t> first = real_op(w, *f, low);
    if (!first) return std::nullopt;
    want = pair ? *real_op(w, *f, high) << 16 | *first : *first;
  } else if (const std::optional<Integer> t = integer_of(type)) {
    const std::optional<uint64_t> bits = integer_op(w, *t, b);
    if (!bits) return std::nullopt;
    want = *bits;
  } else {
    return std::nullopt;
  }
  return found == want;
}

TEST(Semantics, EveryEntryOfTheTable) {
  int64_t checked = 0;
  int wrong = 0;
  for (const LaneOp* op : all_lane_ops()) {
    const Words w = split(op->name);
    std::vector<std::vector<uint64_t>> values;
    for (size_t i = 0; i < op->sources; ++i) {
      // Shift counts, positions and the like are 32-bit numbers beside operands of the op's type.
      std::string type = w.back();
      values.push_back(op->source[i] == kPredicate ? std::vector<uint64_t>{0, 1}
                                                   : values_for(op->source[i], type));
    }
    size_t combinations = 1;
    for (const auto& list : values) combinations *= list.size();
    // All of them for up to two operands; else a walk with a stride that meets every value of each.
    const size_t stride = combinations <= 4096 ? 1 : combinations / 2048 | 1;
    int shown = 0;
    for (size_t at = 0; at < combinations; at += stride) {
      std::vector<uint64_t> sources;
      size_t rest = at;
      for (const auto& list : values) sources.push_back(list[rest % list.size()]), rest /= list.size();
      uint64_t want = 0;
      const uint64_t found = run(*op, sources);
      const std::optional<bool> good = right(w, sources, found, want);
      if (!good) {
        ADD_FAILURE() << op->name << " has no meaning in this test";
        break;
      }
      ++checked;
      if (*good || shown++ >= 3) continue;
      ++wrong;
      std::string text;
      for (const uint64_t s : sources) text += fmt::format(" {:#x}", s);
      ADD_FAILURE() << op->name << text << fmt::format(": {:#x}, not {:#x}", found, want);
      if (wrong > 60) return;
    }
  }
  std::printf("%lld vectors of %zu entries\n", static_cast<long long>(checked), all_lane_ops().size());
}

}  // namespace
}  // namespace gacc::emulator
