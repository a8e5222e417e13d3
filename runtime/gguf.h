// The GGUF format, versions 2 and 3: a header, typed metadata, then tensors one behind the other, each at a multiple of
// the file's alignment.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/safetensors.h"
#include "runtime/status.h"

namespace gacc {

inline constexpr std::string_view kGgufMagic = "GGUF";
// Returns true for the path of a GGUF, by its ending.
inline bool is_gguf(std::string_view path) { return path.ends_with(".gguf"); }

// Types of metadata, by the numbers of the format.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

struct GgufEntry {
  std::string key;
  GgufType type{}, of{};  // `of`: of an array's entries
  uint64_t count = 1;     // its entries
  std::string_view
      bytes;  // as they lie in the file; of a text, and of each in an array, with its length before it

  // Returns nothing of other types.
  std::optional<double> number() const;
  std::optional<std::string_view> text() const;
};
// Returns the value as JSON; of an array of more than 4096 entries, and of no finite number, null.
std::string json_of(const GgufEntry& entry);

struct GgufTensor {
  std::string name;
  std::string type;              // "Q8_0"
  std::vector<int64_t> shape;    // row-major, other than the file says it
  uint64_t begin = 0, size = 0;  // in the file
};

struct Gguf {
  std::vector<GgufEntry> metadata;  // in the order of the file
  std::vector<GgufTensor> tensors;  // likewise

  const GgufEntry* find(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
};

// Reads what `bytes` hold, which must outlive it. Every length, type, offset and the alignment is checked. An error
// begins with `file`.
Status parse_gguf(std::string_view bytes, std::string_view file, Gguf& to);

// A tensor to be written: rows of f32, in a type that has a form for numbers (is_writable).
struct GgufOutput {
  std::string name;
  std::string type = "F32";
  std::vector<int64_t> shape{};
  std::string data{};  // as it lies in the file
};
// Returns the types in which numbers can be written: F32, F16, BF16, Q8_0.
bool is_writable_in_gguf(std::string_view type);
// Returns numbers as they lie in the file. An error names the tensor.
Result<std::string> gguf_data(std::string_view type, std::span<const float> numbers, std::string_view tensor);

// Metadata that are written: text and numbers.
class GgufMetadata {
 public:
  void add(std::string_view key, std::string_view text);
  void add(std::string_view key, float number);
  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  uint64_t count_ = 0;
  std::string bytes_;
};
// Returns a whole file, of version 3.
std::string gguf_bytes(const GgufMetadata& metadata, const std::vector<GgufOutput>& tensors);

}  // namespace gacc
