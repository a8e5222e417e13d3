// The safetensors format: an 8-byte little-endian header length, a JSON header, then raw tensors.
#pragma once
#include <cstdint>
#include <map>
#include <span>
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

// A tensor as it lies in a file.
struct StoredTensor {
  std::string name, dtype;  // "F32"; of a GGUF also ggml's blocks, "Q8_0"
  std::vector<int64_t> shape;
  std::string_view bytes;

  bool is_real() const;
  // The integer in which PyTorch's batch norms count the batches they have seen: nothing here has it.
  bool counts_batches() const { return dtype == "I64" && name.ends_with(".num_batches_tracked"); }
};
int64_t elements_of(const StoredTensor& tensor);
// Returns what files call a type of elements: "F32" for "f32".
std::string stored_dtype(std::string_view type);
// Elements of a real one, from number `first` on, as f32.
void read_elements(const StoredTensor& tensor, int64_t first, std::span<float> to);
// Gives an error that begins with `file` where a number is not finite.
Status check_finite(const StoredTensor& tensor, std::string_view file);
// A name out of the file, fit for a one-line message.
std::string shown_name(std::string_view name);

// The first bytes of a run's checkpoint (runtime/store/checkpoint.h), which is none of these files.
inline constexpr std::string_view kCheckpointMagic = "gacc checkpoint\n";

using Metadata = std::map<std::string, std::string>;

// Writes tensors, sorted by name, atomically. `metadata` goes into __metadata__, with the "format": "pt" that
// transformers wants in every file. `dtype`: "F32", "F16" or "BF16"; a number beyond it is an error.
Status save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                        const Metadata& metadata = {}, std::string_view dtype = "F32");
// Gives the same as bytes. `path` is for messages.
Result<std::string> safetensors_bytes(const std::string& path, const std::vector<NamedTensor>& tensors,
                                      const Metadata& metadata, std::string_view dtype = "F32");
// The tensors of a file, sorted by name, as they lie in `bytes`; of any type that the format has. Every size,
// offset and overlap is checked.
Status parse_stored(std::string_view bytes, std::string_view name, std::vector<StoredTensor>& tensors,
                    Metadata* metadata = nullptr);

}  // namespace gacc
