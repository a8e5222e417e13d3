#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/atomic_file.h"
#include "runtime/not_downloaded.h"
#include "runtime/text.h"
#include "runtime/weights/weights.h"

namespace gacc {
namespace {

constexpr int64_t kMostIndex = 100'000'000;  // bytes

bool is_plain_name(std::string_view file) {
  return !file.empty() && file != "." && file != ".." && file.find('/') == std::string_view::npos &&
         std::ranges::none_of(file, [](unsigned char c) { return c < 0x20; });
}

// Lists files of a folder that were perhaps meant: files of parameters, and the checkpoint of a run.
std::string others_in(const std::string& folder) {
  if (is_there(file_in(folder, "adapter_config.json")))
    return fmt::format("; it is an adapter: --load-adapter {}, and --load takes the folder of its base",
                       folder);
  std::vector<std::string> files;
  std::error_code ignored;
  bool torch = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    torch = torch || entry.path().filename().string().starts_with("pytorch_model");
  }
  std::ranges::sort(files);
  std::string text = files.empty() ? "" : fmt::format("; give the file {}", fmt::join(files, " or "));
  if (files.empty() && torch)
    text = fmt::format(
        "; its weights are of torch.save: "
        "transformers.AutoModelForCausalLM.from_pretrained(\"{}\").save_pretrained(DIR) "
        "writes them as safetensors",
        folder);
  const std::string checkpoint = std::filesystem::path(folder) / "checkpoint";
  const Result<SharedFile> file = FileBytes::open(checkpoint, 1);
  if (file && (*file)->text().starts_with(kCheckpointMagic))
    text += fmt::format("; go on from the checkpoint {} with --checkpoint {} --resume", checkpoint, folder);
  return text;
}

}  // namespace

Result<std::vector<ShardOf>> parse_index(std::string_view text, std::string_view name) {
  using nlohmann::json;
  // Finds names that stand twice, which a JSON tree does not tell.
  int lists = 0;
  bool in_map = false;
  std::set<std::string> seen;
  std::string twice;
  const auto look = [&](int depth, json::parse_event_t event, const json& key) {
    if (event != json::parse_event_t::key) return true;
    if (depth == 1) lists += in_map = key == "weight_map";
    if (depth == 2 && in_map && !seen.insert(key.get<std::string>()).second) twice = key.get<std::string>();
    return true;
  };
  json index;
  try {
    index = json::parse(text, look);
  } catch (const json::parse_error& error) {
    return Status::error("{}: is no valid JSON near its byte {}", name, error.byte);
  } catch (const json::out_of_range&) {
    return Status::error("{}: has a number beyond all floats", name);
  }
  if (!index.is_object()) return Status::error("{}: is no JSON object", name);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object())
    return Status::error("{}: has no list weight_map of tensors and their files", name);
  if (lists > 1) return Status::error("{}: has two lists weight_map", name);
  if (!twice.empty()) return Status::error("{}: has two tensors {}", name, shown_name(twice));
  std::vector<ShardOf> shards;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      return Status::error("{}: does not name a file for the tensor {}", name, shown_name(tensor));
    shards.push_back({tensor, file.get<std::string>()});
    if (!is_plain_name(shards.back().file))
      return Status::error("{}: the tensor {} would be in {}, which is no file beside the index", name,
                           shown_name(tensor), shown_name(shards.back().file));
  }
  return shards;
}

const StoredTensor* WeightFile::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &StoredTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

Status WeightFile::add(const std::string& path, std::vector<StoredTensor>& tensors) {
  files_.push_back(GACC_TRY(FileBytes::open(path, 1)));
  if (const std::string_view bytes = files_.back()->text(); bytes.starts_with(kGgufMagic)) {
    GACC_TRY(parse_gguf(bytes, path, gguf_.emplace()));
    for (const GgufTensor& tensor : gguf_->tensors)
      tensors.push_back({tensor.name, tensor.type, tensor.shape, bytes.substr(tensor.begin, tensor.size)});
    std::ranges::sort(tensors, {}, &StoredTensor::name);
    return {};
  }
  Metadata metadata;
  GACC_TRY(parse_stored(files_.back()->text(), path, tensors, &metadata));
  metadata_.merge(metadata);
  return {};
}

Status WeightFile::open_shards(std::string_view index) {
  const std::vector<ShardOf> shards = GACC_TRY(parse_index(index, path_));
  std::map<std::string_view, std::set<std::string_view>>
      named;  // by file: the tensors that are not found yet
  std::map<std::string_view, std::string_view> file_of;
  for (const ShardOf& each : shards) {
    named[each.file].insert(each.tensor);
    file_of.emplace(each.tensor, each.file);
  }
  const std::string folder = path_.substr(0, path_.rfind('/') + 1);
  std::vector<std::string> problems;
  for (auto& [file, wanted] : named) {
    std::vector<StoredTensor> tensors;
    if (const Status status = add(folder + std::string(file), tensors); !status) {
      problems.push_back(status.text());
      continue;
    }
    for (StoredTensor& tensor : tensors) {
      if (wanted.erase(tensor.name) > 0) {
        tensors_.push_back(std::move(tensor));
      } else if (const auto other = file_of.find(tensor.name); other != file_of.end()) {
        problems.push_back(fmt::format("{} is in {}, and the index says in {}", shown_name(tensor.name), file,
                                       other->second));
      } else {
        problems.push_back(fmt::format("{} is in {} and not in the index", shown_name(tensor.name), file));
      }
    }
    for (const std::string_view name : wanted)
      problems.push_back(fmt::format("{} is not in {}, where the index says", shown_name(name), file));
  }
  if (!problems.empty()) return Status::error(problem_list(path_, problems));
  std::ranges::sort(tensors_, {}, &StoredTensor::name);
  return {};
}

Status WeightFile::open(const std::string& path) {
  *this = WeightFile();
  path_ = path;
  std::error_code ignored;
  if (const std::string advice = not_downloaded(path);
      !advice.empty() && !std::filesystem::exists(path, ignored))
    return Status::error("cannot read {}: it is not there{}", path, advice);
  if (std::filesystem::is_directory(path, ignored)) {
    path_.clear();
    // As transformers: an index may be what an earlier, larger model of the folder left.
    for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
      if (path_.empty() && is_there(file_in(path, name))) path_ = file_in(path, name);
    if (path_.empty())
      return Status::error("{}: has neither model.safetensors nor model.safetensors.index.json{}", path,
                           others_in(path));
  }
  if (!path_.ends_with(".json")) return add(path_, tensors_);
  return open_shards(GACC_TRY(read_file(path_, kMostIndex)));
}

}  // namespace gacc
