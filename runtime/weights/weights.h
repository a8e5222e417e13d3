// Weights on the disk, and for --load, by the plan's table: which tensors of a file make which parameter,
// checked before anything runs and written into a session block by block. The same table backwards names what
// --save writes.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/file_bytes.h"
#include "runtime/gguf.h"
#include "runtime/safetensors.h"
#include "runtime/session/session.h"

namespace gacc {

// One safetensors file or GGUF, or `model.safetensors.index.json` with the shards that it names, or the folder that
// holds either; of both, the file. The files are mapped, not read: a tensor's bytes come into memory where they
// are looked at.
class WeightFile {
 public:
  // An error names everything that is wrong with the index and its shards.
  Status open(const std::string& path);
  const std::string& path() const { return path_; }                      // of the file or the index
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // sorted by name
  const StoredTensor* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  // Returns what a GGUF says of itself; null for other files. Of its tensors it has the order.
  const Gguf* gguf() const { return gguf_ ? &*gguf_ : nullptr; }
  // Returns the bytes of a file that is no index.
  std::string_view bytes() const { return files_.front()->text(); }

 private:
  Status add(const std::string& path, std::vector<StoredTensor>& tensors);
  Status open_shards(std::string_view index);

  std::string path_;
  std::vector<SharedFile> files_;
  std::vector<StoredTensor> tensors_;
  Metadata metadata_;
  std::optional<Gguf> gguf_;
};

// The shard of each tensor: {"weight_map": {"NAME": "FILE", ...}}, sorted by name. A shard is a file in the index's
// folder.
struct ShardOf {
  std::string tensor, file;
};
Result<std::vector<ShardOf>> parse_index(std::string_view text, std::string_view name);

// Kinds of files by what names their tensors: published weights by [load], a GGUF by [gguf].
enum class FileKind : uint8_t { published, gguf };
// Names the tensors of a parameter, with the prefix, as the plan's table has them.
using PublishedName = PlanLoad::Parameter;
PublishedName published_name(const Plan& plan, const std::string& parameter,
                             FileKind kind = FileKind::published, bool with_prefix = true);
// The layers that share a parameter, as the names that it would have of each: none where one layer reads it.
std::vector<std::string> shared_as(const Plan& plan, std::string_view parameter);
bool is_of_adapter(const Plan& plan, std::string_view parameter);

// Rows of a published tensor that follow each other in a parameter, too.
struct RowRun {
  int64_t begin = 0, count = 0;
};
// The rows of one tensor that a parameter takes: the tensor is `groups` times the rows of `sizes`; the parameter has
// the parts `taken`, one after the other, each of all groups.
struct Split {
  std::vector<int64_t> sizes{}, taken{};
  int64_t groups = 1;
};
// Returns nothing where the parameter has whole tensors. In the plan a part that is another parameter's is below zero.
std::optional<Split> split_of(const PublishedName& as, int64_t rows);
// Returns the rows of the tensor in the parameter's order.
std::vector<RowRun> runs_of(const Split& split);
// Returns those of a tensor of so many rows, by its number among the parameter's. `rows` of a split one: the
// parameter's.
std::vector<RowRun> runs_of(const PublishedName& as, size_t tensor, int64_t rows);

// The tensors of a file that make a parameter, one after the other along the first axis.
struct WeightSource {
  const PlanBuffer* buffer = nullptr;
  std::vector<const StoredTensor*> tensors{};
  bool transpose = false;
  std::vector<std::vector<RowRun>> runs{};  // of each tensor; empty: all rows of every tensor
  int64_t column = 0;                       // where the parameter's first column is in them
  float factor = 1;                         // of the file's numbers
  float shift = 0;                          // what these have more than ours
};
// Returns the shape that the tensors have together; none where they do not fit each other, or not the rows that
// the name says of each.
std::vector<int64_t> joined_shape(const WeightSource& source, const PublishedName& as);
// Returns the rows of a tensor that is split.
int64_t rows_of(const Split& split);
// Returns ", part 0 of 64 + 64 rows" of a tensor that is split, else "".
std::string split_text(const std::optional<Split>& split);
// Returns the buffers of a session's plan that `write_sources` writes: parameters and their half copies, each whole.
std::vector<const PlanBuffer*> buffers_of(const std::vector<WeightSource>& sources, const Plan& plan);
// Overwrites those parameters of an initialised session.
Status write_sources(const std::vector<WeightSource>& sources, Session& session);

// Ends a message about a GGUF for a plan without names for it.
inline constexpr std::string_view kNoGguf =
    "the model file has no [gguf], which says what its parameters are called in a GGUF; that of a published "
    "model has one (gaccc FOLDER --emit toml prints it)";

// A pattern of [load]: `*` is any text, {NAME} a number.
bool matches_pattern(std::string_view pattern, std::string_view name);

class Weights {
 public:
  // Opens a file for the parameters of a plan. An error lists all that does not fit.
  Status open(const std::string& path, const Plan& plan);
  bool is_open() const { return !file_.path().empty(); }
  // Returns the folder that was given, as an absolute path; "" where it was a file.
  const std::string& folder() const { return folder_; }
  const Metadata& metadata() const { return file_.metadata(); }
  const WeightFile& file() const { return file_; }
  FileKind kind() const { return file_.gguf() == nullptr ? FileKind::published : FileKind::gguf; }
  // All of the file, also what the plan's table ignores.
  const std::vector<StoredTensor>& tensors() const { return file_.tensors(); }
  // Says what becomes of the file's blocks, and which of its numbers are quantised: "210 tensors of Q4_1 are taken as
  // they lie; ..."; "" where there is neither.
  std::string blocks_text() const;
  // Parameters that the file lacks: with `part` they keep their start. Adapters may all be missing in any case.
  const std::vector<std::string>& missing() const { return missing_; }
  // Returns what `write` writes of a session with that plan.
  std::vector<const PlanBuffer*> written(const Plan& plan) const { return buffers_of(sources_, plan); }
  // Overwrites the parameters of an initialised session that the file has.
  Status write(Session& session) const { return write_sources(sources_, session); }
  // Returns the extents, along the first axis, of the tensors that make up a parameter; empty when it is one tensor.
  std::vector<int64_t> parts_of(std::string_view parameter) const;
  // Fails where the folder's config.json does not describe the model, when its parameters have their published names:
  // where either has a matrix that the other lacks.
  Status check_same_model(const Plan& plan) const;

 private:
  std::vector<std::string> find_sources(const Plan& plan);
  std::vector<std::string> left_over(const Plan& plan);
  bool is_copy_of_shared(const Plan& plan, const StoredTensor& tensor) const;

  WeightFile file_;
  std::string folder_;
  std::vector<std::string> left_out_;  // matrices of the file that the table ignores
  bool has_prefix_ = true;  // where the names are not ours, one in the file begins with [load] prefix
  std::vector<WeightSource> sources_;
  std::vector<std::string> missing_;
};

// Fails where --save-as published cannot be done, with the weights that the run begins with (or none).
Status check_published(const Plan& plan, const Weights& loaded, FileKind kind = FileKind::published);
// Fails where these parameters are some parts of a tensor, without the others.
Status check_whole(const Plan& plan, std::span<const std::string> parameters,
                   FileKind kind = FileKind::published);
// Gives parameters the names, order and axes of the file that the plan's table describes.
Status to_published(const Plan& plan, const Weights& loaded, std::vector<NamedTensor>& tensors,
                    FileKind kind = FileKind::published);
// Notes in the metadata of a file that its names are ours, where the plan has others.
void mark_own_names(const Plan& plan, Metadata& metadata);

}  // namespace gacc
