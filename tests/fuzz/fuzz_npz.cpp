// libFuzzer target for .npz files: the zip around the arrays, its directory, sizes and checksums.
#include "runtime/data/array.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<gacc::NamedArray> arrays;
  std::vector<std::string> names, wanted = {"image"};
  gacc::Status status = gacc::parse_npz(bytes, "f", nullptr, arrays, names);
  gacc::fuzz::check_status(status);
  if (status)
    for (const gacc::NamedArray& array : arrays) gacc::fuzz::check_array(array.array);
  gacc::fuzz::check_status(gacc::parse_npz(bytes, "f", &wanted, arrays, names));
  return 0;
}
