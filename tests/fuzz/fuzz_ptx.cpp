// libFuzzer target for PTX: any text gives kernels, or an error of one line.
#include "emulator/emulator.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<gacc::emulator::KernelInfo> kernels;
  gacc::fuzz::check_status(
      gacc::emulator::list_kernels({reinterpret_cast<const char*>(data), size}, kernels));
  return 0;
}
