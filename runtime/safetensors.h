// The safetensors format: an 8-byte little-endian header length, a JSON header, then raw tensors.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;  // row-major
  std::vector<float> data;
};

using Metadata = std::map<std::string, std::string>;

// F32 tensors, sorted by name, written atomically. `metadata` goes into __metadata__, beside the "format":
// "pt" without which transformers takes no file.
Status save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                        const Metadata& metadata = {});
// The same, into memory. `path` is for messages.
Status safetensors_bytes(const std::string& path, const std::vector<NamedTensor>& tensors,
                         const Metadata& metadata, std::string& bytes);
// Reads F32, F16 and BF16 tensors as f32; every size, offset and overlap is checked, and that every number is
// finite. Without the num_batches_tracked of PyTorch's batch norms. `metadata`, if not null, gets the strings
// of __metadata__.
Status load_safetensors(const std::string& path, std::vector<NamedTensor>& tensors,
                        Metadata* metadata = nullptr);
Status parse_safetensors(std::string_view bytes, std::string_view name, std::vector<NamedTensor>& tensors,
                         Metadata* metadata = nullptr);

}  // namespace gacc
