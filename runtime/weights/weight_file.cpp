// See weight_file.h.
#include "runtime/weights/weight_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"

namespace gacc {

namespace {

constexpr int64_t kMostIndex = 100'000'000;  // bytes

// Reads the one form that an index has; other keys than "weight_map" are skipped.
class Index final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<ShardOf> shards;
  std::string problem;
  bool found = false;

  bool start_object(size_t) override {
    if (depth_ == 1 && key_ == "weight_map") {
      if (found) return fail("has two lists weight_map");
      found = in_map_ = true;
    } else if (in_map_) {
      return misplaced();
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (in_map_ || depth_ == 0) return misplaced();
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& name) override {
    key_ = name;
    return true;
  }
  bool string(std::string& value) override {
    if (!in_map_) return other();
    shards.push_back({key_, value});
    return true;
  }
  bool number_unsigned(uint64_t) override { return other(); }
  bool number_integer(int64_t) override { return other(); }
  bool number_float(double, const std::string&) override { return other(); }
  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool binary(nlohmann::json::binary_t&) override { return other(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(fmt::format("is no valid JSON near its byte {}", position));
  }

 private:
  bool fail(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  bool misplaced() {
    return fail(depth_ == 0 ? "is no JSON object"
                            : fmt::format("does not name a file for the tensor {}", shown_name(key_)));
  }
  bool other() {
    if (in_map_ || depth_ == 0) return misplaced();
    return depth_ > 1 || key_ != "weight_map" || fail("has no list weight_map");
  }

  int depth_ = 0;
  bool in_map_ = false;
  std::string key_;
};

bool is_plain_name(std::string_view file) {
  return !file.empty() && file != "." && file != ".." && file.find('/') == std::string_view::npos &&
         file.find('\0') == std::string_view::npos;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// What a folder has that was perhaps meant: files of parameters, and the checkpoint of a run.
std::string others_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::ranges::sort(files);
  std::string text = files.empty() ? "" : fmt::format("; give the file {}", fmt::join(files, " or "));
  const std::string checkpoint = std::filesystem::path(folder) / "checkpoint";
  const Result<SharedFile> file = FileBytes::open(checkpoint, 1);
  if (file && (*file)->text().starts_with(kCheckpointMagic))
    text += fmt::format("; go on from the checkpoint {} with --checkpoint {} --resume", checkpoint, folder);
  return text;
}

}  // namespace

std::string problem_list(std::string_view what, const std::vector<std::string>& problems) {
  return problems.size() == 1 ? fmt::format("{}: {}", what, problems.front())
                              : fmt::format("{}:\n  {}", what, fmt::join(problems, "\n  "));
}

Result<std::vector<ShardOf>> parse_index(std::string_view text, std::string_view name) {
  Index index;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &index))
    return Status::error("{}: {}", name, index.problem.empty() ? "is damaged" : index.problem);
  if (!index.found) return Status::error("{}: has no list weight_map of tensors and their files", name);
  std::sort(index.shards.begin(), index.shards.end(),
            [](const ShardOf& a, const ShardOf& b) { return a.tensor < b.tensor; });
  for (size_t i = 0; i < index.shards.size(); ++i) {
    const ShardOf& each = index.shards[i];
    if (i > 0 && index.shards[i - 1].tensor == each.tensor)
      return Status::error("{}: has two tensors {}", name, shown_name(each.tensor));
    if (!is_plain_name(each.file))
      return Status::error("{}: the tensor {} would be in {}, which is no file beside the index", name,
                           shown_name(each.tensor), shown_name(each.file));
  }
  return std::move(index.shards);
}

const StoredTensor* WeightFile::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &StoredTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

Status WeightFile::add(const std::string& path, std::vector<StoredTensor>& tensors) {
  files_.push_back(GACC_TRY(FileBytes::open(path, 1)));
  Metadata metadata;
  GACC_TRY(parse_stored(files_.back()->text(), path, tensors, &metadata));
  metadata_.merge(metadata);
  return {};
}

Status WeightFile::open_shards(std::string_view index) {
  const std::vector<ShardOf> shards = GACC_TRY(parse_index(index, path_));
  std::map<std::string_view, std::map<std::string_view, bool>> named;  // by file: the tensors, found or not
  std::map<std::string_view, std::string_view> file_of;
  for (const ShardOf& each : shards) {
    named[each.file].emplace(each.tensor, false);
    file_of.emplace(each.tensor, each.file);
  }
  std::vector<std::string> problems;
  for (auto& [file, wanted] : named) {
    std::vector<StoredTensor> tensors;
    if (const Status status = add(folder_of(path_) + std::string(file), tensors); !status) {
      problems.push_back(status.text());
      continue;
    }
    for (StoredTensor& tensor : tensors) {
      const auto found = wanted.find(tensor.name);
      const auto other = file_of.find(tensor.name);
      if (found != wanted.end()) {
        found->second = true;
        tensors_.push_back(std::move(tensor));
      } else if (other != file_of.end()) {
        problems.push_back(fmt::format("{} is in {}, and the index says in {}", shown_name(tensor.name), file,
                                       other->second));
      } else {
        problems.push_back(fmt::format("{} is in {} and not in the index", shown_name(tensor.name), file));
      }
    }
    for (const auto& [name, found] : wanted)
      if (!found)
        problems.push_back(fmt::format("{} is not in {}, where the index says", shown_name(name), file));
  }
  if (!problems.empty()) return Status::error(problem_list(path_, problems));
  std::ranges::sort(tensors_, {}, &StoredTensor::name);
  return {};
}

Status WeightFile::open(const std::string& path) {
  *this = WeightFile();
  path_ = path;
  struct stat about = {};
  if (stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode)) {
    const std::string folder = path + (path.ends_with('/') ? "" : "/");
    path_.clear();
    for (const char* name : {"model.safetensors.index.json", "model.safetensors"})
      if (path_.empty() && access((folder + name).c_str(), F_OK) == 0) path_ = folder + name;
    if (path_.empty())
      return Status::error("{}: has neither model.safetensors nor model.safetensors.index.json{}", path,
                           others_in(path));
  }
  if (!path_.ends_with(".json")) return add(path_, tensors_);
  return open_shards(GACC_TRY(read_file(path_, kMostIndex)));
}

}  // namespace gacc
