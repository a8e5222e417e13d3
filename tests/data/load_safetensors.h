// A whole file of f32 tensors, as tests look at what was saved.
#pragma once
#include "runtime/atomic_file.h"
#include "runtime/safetensors.h"

namespace gacc {

// Reads F32, F16 and BF16 tensors as f32; every size, offset and overlap is checked, and that every number is
// finite. Without the num_batches_tracked of PyTorch's batch norms. `metadata`, if not null, gets the strings
// of __metadata__.
inline Status parse_safetensors(std::string_view bytes, std::string_view name,
                                std::vector<NamedTensor>& tensors, Metadata* metadata = nullptr) {
  tensors.clear();
  std::vector<StoredTensor> stored;
  GACC_TRY(parse_stored(bytes, name, stored, metadata));
  for (const StoredTensor& from : stored) {
    if (from.counts_batches()) continue;
    if (!from.is_real())
      return Status::error("{}: tensor {} has the type {}; known are F32, F16 and BF16", name,
                           shown_name(from.name), shown_name(from.dtype));
    GACC_TRY(check_finite(from, name));
    NamedTensor& tensor = tensors.emplace_back(NamedTensor{from.name, from.shape, {}});
    tensor.data.resize(static_cast<size_t>(elements_of(from)));
    read_elements(from, 0, tensor.data);
  }
  return {};
}

inline Status load_safetensors(const std::string& path, std::vector<NamedTensor>& tensors,
                               Metadata* metadata = nullptr) {
  const std::string bytes = GACC_TRY(read_file(path));
  return parse_safetensors(bytes, path, tensors, metadata);
}

}  // namespace gacc
