// libFuzzer target for .npy files: any bytes give an array that fits its shape, or an error.
#include "runtime/data/array.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gacc::Array array;
  gacc::Status status = gacc::parse_npy({reinterpret_cast<const char*>(data), size}, "f", array);
  gacc::fuzz::check_status(status);
  if (status) gacc::fuzz::check_array(array);
  return 0;
}
