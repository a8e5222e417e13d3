// libFuzzer target for GGUFs: any bytes give tensors that lie in the file and can be read, or an error.
#include "runtime/gguf.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  gacc::Gguf gguf;
  const gacc::Status status = gacc::parse_gguf(bytes, "f", gguf);
  gacc::fuzz::check_status(status);
  if (!status) return 0;
  for (const gacc::GgufEntry& entry : gguf.metadata) gacc::json_of(entry);
  for (const gacc::GgufTensor& tensor : gguf.tensors) {
    if (tensor.begin > size || tensor.size > size - tensor.begin) __builtin_trap();
    const gacc::StoredTensor stored{tensor.name, tensor.type, tensor.shape,
                                    bytes.substr(tensor.begin, tensor.size)};
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    if (elements_of(stored) != elements) __builtin_trap();
    std::vector<float> numbers(static_cast<size_t>(elements));
    gacc::read_elements(stored, 0, numbers);
  }
  return 0;
}
