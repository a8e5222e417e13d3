// Abilities of a target's GPUs that a choice of kernels or code depends on.
#pragma once
#include <charconv>
#include <cstdint>
#include <string_view>

namespace gacc::kernels {

inline constexpr int64_t kWarp = 32;  // threads, of every GPU

struct GpuTarget {
  int capability = 0;         // 90 of sm_90a
  bool f16_products = false;  // mma.sync of f16
  bool bf16 = false;          // arithmetic and mma.sync of bf16, arithmetic of pairs of halves
  bool async_copies = false;  // cp.async, and mma.sync over 16 of the depth

  // 0: no GPU.
  explicit constexpr GpuTarget(int number)
      : capability(number), f16_products(number >= 75), bf16(number >= 80), async_copies(number >= 80) {}
  // "sm_90a"; of other names 0.
  explicit GpuTarget(std::string_view name) : GpuTarget(number_of(name)) {}

 private:
  static int number_of(std::string_view name) {
    int number = 0;
    if (name.starts_with("sm_")) std::from_chars(name.data() + 3, name.data() + name.size(), number);
    return number;
  }
};

}  // namespace gacc::kernels
