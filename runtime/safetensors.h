// The safetensors format: an 8-byte little-endian header length, a JSON header, then raw tensors.
#pragma once
#include <cstdint>
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

// F32 tensors, sorted by name, written atomically.
Status save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);
// Reads F32, F16 and BF16 tensors as f32; every size, offset and overlap is checked, and that every number is
// finite.
// Without the num_batches_tracked of PyTorch's batch norms.
Status load_safetensors(const std::string& path, std::vector<NamedTensor>& tensors);
Status parse_safetensors(std::string_view bytes, std::string_view name, std::vector<NamedTensor>& tensors);

}  // namespace gacc
