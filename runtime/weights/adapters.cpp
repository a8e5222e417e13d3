// See adapters.h.
#include "runtime/weights/adapters.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/atomic_file.h"
#include "runtime/text.h"

namespace gacc {
namespace {

using nlohmann::json;

constexpr std::string_view kTensors = "adapter_model.safetensors", kConfiguration = "adapter_config.json";
constexpr std::string_view kRoot = "base_model.model.";  // PEFT puts it before a module's path
constexpr int64_t kMostConfiguration = 1'000'000;        // bytes

constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";  // of an adapter's name

bool is_folder(const std::string& path) { return !path.ends_with(".safetensors"); }

std::string_view without_weight(std::string_view name) {
  return name.ends_with(".weight") ? name.substr(0, name.size() - std::strlen(".weight")) : name;
}

// The path of the module that an adapter belongs to: of the published weight that its rows are.
Result<std::string> module_of(const Plan& plan, const PlanAdapter& adapter) {
  const PublishedName as = published_name(plan, adapter.weight);
  const int64_t all = plan.find(adapter.weight)->shape[0], rows = plan.find(adapter.name + kB)->shape[0];
  if (!plan.load) return adapter.name;
  const std::vector<int64_t> parts = as.tensors.size() == 1 ? std::vector{all} : as.parts;
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (begin == adapter.begin && parts[i] == rows) return std::string(without_weight(as.tensors[i]));
    begin += parts[i];
  }
  return Status::error(
      "PEFT cannot name the adapter {}: it is of {} of the {} rows of {}, which is {} in the published "
      "weights; `on` of `lora` says which products are adapted",
      adapter.name, rows, all, adapter.weight, fmt::join(as.tensors, ", "));
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// PEFT's target_modules: the last parts of the modules' paths, where these name no other matrix; else the
// whole paths.
std::vector<std::string> targets_of(const Plan& plan, const std::vector<std::string>& modules) {
  const std::set<std::string> adapted(modules.begin(), modules.end());
  std::set<std::string> last;
  for (const std::string& module : modules) last.insert(last_part(module));
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer) || buffer.shape.size() != 2) continue;
    for (const std::string& tensor : published_name(plan, buffer.name).tensors) {
      const std::string module(without_weight(tensor));
      if (last.contains(last_part(module)) && !adapted.contains(module))
        return {adapted.begin(), adapted.end()};
    }
  }
  return {last.begin(), last.end()};
}

template <class T>
T most_common(const std::vector<T>& values) {
  std::map<T, size_t> counts;
  for (const T& value : values) ++counts[value];
  return std::ranges::max_element(counts, {}, &std::pair<const T, size_t>::second)->first;
}

// What most modules have, and the others by their paths.
template <class T>
void add_pattern(json& config, const char* key, const char* pattern, const std::vector<std::string>& modules,
                 const std::vector<T>& values) {
  const T common = most_common(values);
  config[key] = common;
  config[pattern] = json::object();
  for (size_t i = 0; i < modules.size(); ++i)
    if (values[i] != common) config[pattern][modules[i]] = values[i];
}

std::string configuration_of(const Plan& plan, const std::vector<std::string>& modules) {
  std::vector<int64_t> ranks;
  std::vector<double> alphas;
  bool transposed = false;
  for (const PlanAdapter& adapter : plan.adapters) {
    ranks.push_back(plan.find(adapter.name + kA)->shape[0]);
    alphas.push_back(adapter.alpha);
    transposed |= published_name(plan, adapter.weight).transpose;
  }
  json config = {{"peft_type", "LORA"},
                 {"task_type", plan.predict.positions == "causal" ? json("CAUSAL_LM") : json()},
                 {"base_model_name_or_path", nullptr},
                 {"target_modules", targets_of(plan, modules)},
                 {"lora_dropout", 0.0},
                 {"bias", "none"},
                 {"fan_in_fan_out", transposed},
                 {"init_lora_weights", true},
                 {"inference_mode", true},
                 {"modules_to_save", nullptr}};
  add_pattern(config, "r", "rank_pattern", modules, ranks);
  add_pattern(config, "lora_alpha", "alpha_pattern", modules, alphas);
  return config.dump(2) + "\n";
}

// The alpha that a configuration says for a module. Keys of the pattern are paths or their ends.
double alpha_of(const json& config, const std::string& module) {
  if (const auto pattern = config.find("alpha_pattern"); pattern != config.end() && pattern->is_object())
    for (const auto& [key, value] : pattern->items())
      if (value.is_number() && (module == key || module.ends_with("." + key))) return value.get<double>();
  const auto alpha = config.find("lora_alpha");
  return alpha != config.end() && alpha->is_number() ? alpha->get<double>() : 8;  // PEFT's default
}

// What of a configuration these adapters cannot be.
void check_configuration(const json& config, const Plan& plan, const std::vector<std::string>& modules,
                         std::vector<std::string>& problems) {
  const auto text = [&](const char* key, const char* wanted) {
    const auto found = config.find(key);
    if (found != config.end() && *found != wanted)
      problems.push_back(fmt::format("{} is {}; only \"{}\" is known here", key, found->dump(), wanted));
  };
  text("peft_type", "LORA");
  text("bias", "none");
  for (const char* key : {"use_rslora", "use_dora"})
    if (const auto found = config.find(key); found != config.end() && *found == true)
      problems.push_back(
          fmt::format("{} is true: adapters here are scaled by alpha / rank, without more", key));
  for (size_t i = 0; i < modules.size(); ++i)
    if (const double alpha = alpha_of(config, modules[i]); alpha != plan.adapters[i].alpha)
      problems.push_back(
          fmt::format("lora_alpha of {} is {}, {} in the model", modules[i], alpha, plan.adapters[i].alpha));
}

Result<std::vector<std::string>> modules_of(const Plan& plan) {
  if (plan.adapters.empty())
    return Status::error("the model has no adapters; `lora` of a layer, or [lora], adds them");
  std::vector<std::string> modules;
  for (const PlanAdapter& adapter : plan.adapters) modules.push_back(GACC_TRY(module_of(plan, adapter)));
  return modules;
}

}  // namespace

AdapterFiles adapter_files(const std::string& path) {
  if (path.empty()) return {};
  const std::string folder = path.substr(0, path.rfind('/') + 1), name = path.substr(folder.size());
  if (name == kTensors) return {path, folder + std::string(kConfiguration)};
  if (!is_folder(path)) return {path, ""};
  const std::string inside = path + (path.ends_with('/') ? "" : "/");
  return {inside + std::string(kTensors), inside + std::string(kConfiguration)};
}

Status check_adapters(const Plan& plan) { return modules_of(plan).status(); }

Status prepare_adapter(const std::string& path) {
  const AdapterFiles files = adapter_files(path);
  struct stat about = {};
  if (is_folder(path) && stat(path.c_str(), &about) != 0) return AtomicFile().open(path);
  for (const std::string& file : {files.tensors, files.configuration})
    GACC_TRY(file.empty() ? Status() : AtomicFile().open(file));
  return {};
}

Status save_adapter(const std::string& path, const Plan& plan, const std::vector<NamedTensor>& parameters) {
  const std::vector<std::string> modules = GACC_TRY(modules_of(plan));
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const char* suffix : {kA, kB}) {
      const auto found = std::ranges::find(parameters, plan.adapters[i].name + suffix, &NamedTensor::name);
      NamedTensor& tensor = tensors.emplace_back(*found);
      tensor.name = std::string(kRoot) + modules[i] + suffix;
    }
  }
  const AdapterFiles files = adapter_files(path);
  if (is_folder(path) && mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    return Status::error("cannot make the folder {}: {}", path, std::strerror(errno));
  if (!files.configuration.empty())
    GACC_TRY(write_file_atomically(files.configuration, configuration_of(plan, modules)));
  return save_safetensors(files.tensors, tensors);
}

Status Adapter::open(const std::string& path, const Plan& plan) {
  *this = Adapter();
  std::vector<std::string> problems;
  const std::vector<std::string> modules = GACC_TRY(modules_of(plan));
  const AdapterFiles files = adapter_files(path);
  GACC_TRY(file_.open(files.tensors));
  if (!files.configuration.empty()) {
    const std::string text = GACC_TRY(read_file(files.configuration, kMostConfiguration));
    const json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Status::error("{} is no JSON object", files.configuration);
    check_configuration(config, plan, modules, problems);
  }
  std::set<const StoredTensor*> taken;
  for (size_t i = 0; i < modules.size(); ++i) {
    for (const char* suffix : {kA, kB}) {
      const PlanBuffer* buffer = plan.find(plan.adapters[i].name + suffix);
      const std::string name = fmt::format("{}{}{}", kRoot, modules[i], suffix);
      const StoredTensor* tensor = file_.find(name);
      if (tensor == nullptr) {
        problems.push_back(fmt::format("{} {} is missing", name, shape_text(buffer->shape)));
        continue;
      }
      taken.insert(tensor);
      if (tensor->shape != buffer->shape)
        problems.push_back(fmt::format("{} is {} in the file, {} in the model", name,
                                       shape_text(tensor->shape), shape_text(buffer->shape)));
      else if (!tensor->is_real())
        problems.push_back(
            fmt::format("{} has the type {}; known are F32, F16 and BF16", name, tensor->dtype));
      sources_.emplace_back(buffer, tensor);
    }
  }
  for (const StoredTensor& tensor : file_.tensors())
    if (!taken.contains(&tensor))
      problems.push_back(
          fmt::format("the model has no {} {}", shown_name(tensor.name), shape_text(tensor.shape)));
  if (!problems.empty())
    return Status::error(problem_list(fmt::format("{} does not fit the model", files.tensors), problems));
  for (const auto& [_, tensor] : sources_) GACC_TRY(check_finite(*tensor, files.tensors));
  return {};
}

Status Adapter::write(Session& session) const {
  std::vector<float> values;
  for (const auto& [buffer, tensor] : sources_) {
    values.resize(static_cast<size_t>(elements_of(*tensor)));
    read_elements(*tensor, 0, values);
    GACC_TRY(session.write_parameter(*buffer, 0, values));
  }
  return {};
}

void merge_adapters(const Plan& plan, std::vector<NamedTensor>& parameters) {
  const auto find = [&](const std::string& name) {
    return std::ranges::find(parameters, name, &NamedTensor::name);
  };
  for (const PlanAdapter& adapter : plan.adapters) {
    const auto weight = find(adapter.weight), a = find(adapter.name + kA), b = find(adapter.name + kB);
    const auto rank = static_cast<size_t>(a->shape[0]), in = static_cast<size_t>(a->shape[1]),
               out = static_cast<size_t>(b->shape[0]);
    const double scale = adapter.alpha / static_cast<double>(rank);
    float* to = weight->data.data() + static_cast<size_t>(adapter.begin) * in;
    std::vector<double> row(in);
    for (size_t i = 0; i < out; ++i, to += in) {
      std::ranges::fill(row, 0.0);
      for (size_t r = 0; r < rank; ++r) {
        const double factor = b->data[i * rank + r];
        for (size_t j = 0; j < in; ++j) row[j] += factor * a->data[r * in + j];
      }
      for (size_t j = 0; j < in; ++j) to[j] = static_cast<float>(to[j] + scale * row[j]);
    }
    std::erase_if(parameters, [&](const NamedTensor& each) {
      return each.name == adapter.name + kA || each.name == adapter.name + kB;
    });
  }
}

}  // namespace gacc
