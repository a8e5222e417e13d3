// libFuzzer target for safetensors: any bytes give sorted tensors that fit their shapes, or an error.
#include "runtime/safetensors.h"

#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<gacc::NamedTensor> tensors;
  gacc::Status status = gacc::parse_safetensors({reinterpret_cast<const char*>(data), size}, "f", tensors);
  gacc::fuzz::check_status(status);
  if (!status) return 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t elements = 1;
    for (int64_t extent : tensors[i].shape)
      if (extent == 0) elements = 0;
    if (elements != 0)
      for (int64_t extent : tensors[i].shape) elements *= extent;
    if (elements != static_cast<int64_t>(tensors[i].data.size())) __builtin_trap();
    if (i > 0 && !(tensors[i - 1].name < tensors[i].name)) __builtin_trap();
  }
  return 0;
}
