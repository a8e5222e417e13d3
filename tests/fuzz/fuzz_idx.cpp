// libFuzzer target for IDX files, gzipped or not: any bytes give an array that fits its shape, or an error.
#include "runtime/data/array.h"
#include "runtime/data/gzip.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  gacc::Array array;
  gacc::Status status;
  if (gacc::is_gzip(bytes)) {
    gacc::Result<std::string> unpacked = gacc::gunzip(bytes, "f", 1 << 20);
    status = unpacked.status();
    if (unpacked) bytes = unpacked.take();
  }
  if (status) status = gacc::parse_idx(bytes, "f", array);
  gacc::fuzz::check_status(status);
  if (status) gacc::fuzz::check_array(array);
  return 0;
}
