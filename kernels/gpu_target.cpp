#include "kernels/gpu_target.h"

#include <charconv>

namespace gacc::kernels {

namespace {

int capability_of(std::string_view name) {
  constexpr std::string_view kPrefix = "sm_";
  int number = 0;
  if (name.starts_with(kPrefix))
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
  return number;
}

}  // namespace

GpuTarget::GpuTarget(std::string_view name) : GpuTarget(capability_of(name)) {}

}  // namespace gacc::kernels
