#include "ir/text/size_text.h"

#include <fmt/format.h>

#include <charconv>

namespace gacc::ir {

namespace {

struct Scaled {
  double number;
  const char* unit;
  bool whole;  // bytes have no fractions
};

Scaled scaled(int64_t bytes) {
  if (bytes < 1024) return {static_cast<double>(bytes), "B", true};
  const char* unit = "KiB";
  double number = static_cast<double>(bytes) / 1024;
  for (const char* next : {"MiB", "GiB", "TiB"}) {
    if (number < 1024) break;
    number /= 1024;
    unit = next;
  }
  return {number, unit, false};
}

}  // namespace

std::string size_text(int64_t bytes) {
  const Scaled size = scaled(bytes);
  return fmt::format("{:.{}f} {}", size.number, size.whole ? 0 : 2, size.unit);
}

std::string short_size_text(int64_t bytes) {
  const Scaled size = scaled(bytes);
  const int decimals = size.whole || size.number >= 100 ? 0 : size.number >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", size.number, decimals, size.unit);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view suffix;
    double bytes;
  };
  constexpr double kKilo = 1000, kKibi = 1024;
  static constexpr Unit units[] = {{"KiB", kKibi},  // longest first: every unit ends in B
                                   {"MiB", kKibi * kKibi},
                                   {"GiB", kKibi * kKibi * kKibi},
                                   {"TiB", kKibi * kKibi * kKibi * kKibi},
                                   {"KB", kKilo},
                                   {"MB", kKilo * kKilo},
                                   {"GB", kKilo * kKilo * kKilo},
                                   {"TB", kKilo * kKilo * kKilo * kKilo},
                                   {"B", 1}};
  for (const Unit& unit : units) {
    if (!text.ends_with(unit.suffix)) continue;
    text.remove_suffix(unit.suffix.size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    const double bytes = number * unit.bytes;
    if (!(bytes >= 1 && bytes <= 0x1p62)) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

std::string counted(int64_t count, std::string_view noun) {
  const bool takes_es = noun.ends_with('s') || noun.ends_with("nch");  // launches, but epochs
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : takes_es ? "es" : "s");
}

}  // namespace gacc::ir
