// See published_source.h.
#include "compiler/published_source.h"

#include <algorithm>
#include <filesystem>

#include "runtime/atomic_file.h"

namespace gacc {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytes = int64_t{4} << 20;  // of a config.json or a family

CompileTrouble wrong(const std::string& place, const std::string& text) {
  return {false, fmt::format("{}: error: {}\n", place, text)};
}

bool has(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

// What a folder without a config.json is, as far as its files say.
std::string what_it_is(const fs::path& folder) {
  if (has(folder, "adapter_config.json"))
    return "it is an adapter; take the folder of the model that it belongs to, and --load-adapter when "
           "training";
  if (has(folder, "params.json"))
    return "it is of Meta's own layout; take the one converted for Hugging Face";
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
    const Result<std::string> text = read_input(file.string(), kMostBytes);
    if (!text) return wrong(file.string(), text.status().text());
    families.push_back({file.string(), *text});
  }
  return {};
}

}  // namespace

bool is_published(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".json") || fs::is_directory(path, ignored);
}

std::string published_name(const std::string& path) {
  std::error_code ignored;
  fs::path folder = fs::absolute(path, ignored).lexically_normal();
  if (path.ends_with(".json")) folder = folder.parent_path();
  if (folder.filename().empty()) folder = folder.parent_path();
  return folder.filename().empty() ? "model" : folder.filename().string();
}

std::optional<CompileTrouble> read_published(const std::string& path, const std::string& families,
                                             PublishedOptions options, ModelSource& source) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const std::string config = folder ? (fs::path(path) / "config.json").string() : path;
  if (folder && !has(path, "config.json")) return wrong(path, "there is no config.json; " + what_it_is(path));
  const Result<std::string> text = read_input(config, kMostBytes);
  if (!text) return wrong(config, text.status().text());
  std::vector<Family> all;
  if (std::optional<CompileTrouble> trouble = read_families(families, all)) return trouble;
  all.insert(all.end(), built_in_families().begin(), built_in_families().end());
  options.folder = published_name(path);
  std::string problems;
  std::optional<std::string> model = published_model(*text, config, all, options, problems);
  if (!model) return CompileTrouble{false, problems};
  source = {std::move(*model), config + " as a model file"};
  return {};
}

}  // namespace gacc
