// Weights on the disk: one safetensors file, or `model.safetensors.index.json` with the shards that it names,
// or the folder that holds either. The files are mapped, not read: a tensor's bytes come into memory where
// they are looked at.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/file_bytes.h"
#include "runtime/safetensors.h"

namespace gacc {

class WeightFile {
 public:
  // An error names everything that is wrong with the index and its shards.
  Status open(const std::string& path);
  const std::string& path() const { return path_; }                      // of the file or the index
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // sorted by name
  const StoredTensor* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }

 private:
  Status add(const std::string& path, std::vector<StoredTensor>& tensors);
  Status open_shards(std::string_view index);

  std::string path_;
  std::vector<SharedFile> files_;
  std::vector<StoredTensor> tensors_;
  Metadata metadata_;
};

// Which shard has which tensor: {"weight_map": {"NAME": "FILE", ...}}, sorted by name. A shard is a file in
// the index's folder.
struct ShardOf {
  std::string tensor, file;
};
Result<std::vector<ShardOf>> parse_index(std::string_view text, std::string_view name);

// "NAME has N faults:" and a line for each one.
std::string problem_list(std::string_view what, const std::vector<std::string>& problems);

}  // namespace gacc
