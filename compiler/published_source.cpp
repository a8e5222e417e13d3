#include "compiler/published_source.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compiler/gguf_config.h"
#include "runtime/atomic_file.h"
#include "runtime/data/file_bytes.h"
#include "runtime/gguf.h"
#include "runtime/json_text.h"
#include "runtime/text.h"

namespace gacc {

namespace {

namespace fs = std::filesystem;

CompileTrouble wrong(const std::string& place, const std::string& text) {
  return {false, fmt::format("{}: error: {}\n", place, text)};
}

bool has(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

// Returns the advice for a folder without a config.json, from what its files show.
std::string what_it_is(const fs::path& folder) {
  if (has(folder, "adapter_config.json"))
    return "it is an adapter; take the folder of the model that it belongs to, and --load-adapter when "
           "training";
  if (has(folder, "params.json"))
    return "it is of Meta's own layout; take the one converted for Hugging Face";
  if (has(folder, "snapshots"))
    return "it is a folder of Hugging Face's cache, which has the model in a folder of its snapshots/";
  return "the folder of a published model has it beside its weights";
}

std::optional<CompileTrouble> read_families(const std::string& folder, std::vector<Family>& families) {
  if (folder.empty()) return {};
  std::error_code error;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  if (error) return wrong(folder, error.message());
  if (files.empty()) return wrong(folder, "there is no family in it, which is a file NAME.toml");
  std::ranges::sort(files);
  for (const fs::path& file : files) {
    const Result<std::string> text = read_input(file.string(), kMostConfig);
    if (!text) return wrong(file.string(), text.status().text());
    families.push_back({file.string(), *text});
  }
  return {};
}

// Returns the type that most bytes of the file's matrices have: "Q4_1"; "" where there are none.
std::string type_of_matrices(const Gguf& gguf) {
  std::map<std::string, uint64_t> bytes;
  for (const GgufTensor& tensor : gguf.tensors)
    if (tensor.shape.size() == 2) bytes[tensor.type] += tensor.size;
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& each) { return each.second; });
  return most == bytes.end() ? "" : most->first;
}

// Returns the name of a type of blocks that parameters can be kept in; "" of other types.
std::string blocks_of(const std::string& ggml_type) {
  const std::string name = lower_case(ggml_type);
  const std::optional<ir::DType> type = ir::parse_dtype(name);
  return type && ir::dtype_info(*type).block > 1 ? name : "";
}

}  // namespace

Result<std::string> said_by_gguf(const std::string& path, std::string* matrices) {
  using nlohmann::ordered_json;
  const SharedFile file = GACC_TRY(FileBytes::open(path, 1));
  Gguf gguf;
  GACC_TRY(parse_gguf(file->text(), path, gguf));
  if (matrices != nullptr) *matrices = type_of_matrices(gguf);
  const std::string_view architecture = gguf.text("general.architecture").value_or("");
  if (const auto type = gguf.text("general.type"); type && *type != "model")
    return Status::error("its general.type is \"{}\"; only a model is compiled", *type);
  ordered_json said = ordered_json::object();
  if (!architecture.empty()) said["general.architecture"] = architecture;
  const std::string prefix = fmt::format("{}.", architecture);
  for (const GgufEntry& entry : gguf.metadata)
    if (entry.key.starts_with(prefix))
      said[entry.key.substr(prefix.size())] = ordered_json::parse(json_of(entry));
  constexpr std::string_view kBlock = "blk.", kFirst = "blk.0.";
  for (const GgufTensor& tensor : gguf.tensors) {
    if (tensor.name.starts_with(kBlock) && !tensor.name.starts_with(kFirst)) continue;
    std::string name = tensor.name;
    if (name.starts_with(kFirst)) name.replace(0, kFirst.size(), kBlock);
    said["tensors." + name] = tensor.shape.front();
    constexpr int64_t kMost = 4096;
    if (!name.starts_with("rope_") || tensor.type != "F32" ||
        tensor.shape != std::vector{tensor.shape.front()} || tensor.shape.front() > kMost)
      continue;
    std::vector<float> numbers(static_cast<size_t>(tensor.shape.front()));
    read_elements({name, tensor.type, tensor.shape, file->text().substr(tensor.begin, tensor.size)}, 0,
                  numbers);
    said["values." + name] = ordered_json::array();
    for (const float number : numbers)
      said["values." + name].push_back(ordered_json::parse(fmt::format("{}", number), nullptr, false));
  }
  return json_text(said);
}

bool is_published(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".json") || is_gguf(path) || fs::is_directory(path, ignored);
}

std::string published_name(const std::string& path) {
  std::error_code ignored;
  fs::path folder = fs::absolute(path, ignored).lexically_normal();
  if (path.ends_with(".json")) folder = folder.parent_path();
  if (is_gguf(path)) return folder.stem().string();
  if (folder.filename().empty()) folder = folder.parent_path();
  return folder.filename().empty() ? "model" : folder.filename().string();
}

std::optional<CompileTrouble> read_published(const std::string& path, const std::string& families,
                                             PublishedOptions options, ModelSource& source) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const std::string config = folder ? (fs::path(path) / "config.json").string() : path;
  if (folder && !has(path, "config.json")) return wrong(path, "there is no config.json; " + what_it_is(path));
  options.gguf = !folder && is_gguf(path);
  const Result<std::string> text =
      options.gguf ? said_by_gguf(path, &options.matrices) : read_input(config, kMostConfig);
  if (!text) {
    std::string why = text.status().text();
    if (why.starts_with(path + ": ")) why.erase(0, path.size() + 2);
    return wrong(config, why);
  }
  std::vector<Family> all;
  if (std::optional<CompileTrouble> trouble = read_families(families, all)) return trouble;
  all.insert(all.end(), built_in_families().begin(), built_in_families().end());
  options.folder = published_name(path);
  // Adapters are trained on the matrices as the file has them.
  constexpr std::string_view kFrozen = "precision.frozen";
  const std::string blocks = blocks_of(options.matrices);
  if (options.lora && !blocks.empty() &&
      std::ranges::find(options.overrides, kFrozen, &Override::key) == options.overrides.end())
    options.overrides.push_back({std::string(kFrozen), fmt::format("\"{}\"", blocks)});
  std::string problems;
  std::optional<PublishedModel> model = published_model(*text, config, all, options, problems);
  if (!model) return CompileTrouble{false, problems};
  source = {std::move(model->text), config + " as a model file", std::move(model->origins),
            std::move(model->precision_because), std::move(model->notes)};
  return {};
}

void add_adapters(const ModelSource& source, int64_t rank, std::vector<Override>& overrides) {
  const std::vector<Override> adapters = adapters_of_blocks(source.text, rank);
  overrides.insert(overrides.begin(), adapters.begin(), adapters.end());
}

}  // namespace gacc
