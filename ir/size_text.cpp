#include "ir/size_text.h"

#include <fmt/format.h>

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

}  // namespace gacc::ir
