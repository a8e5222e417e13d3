#include "runtime/weights/adapters.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/atomic_file.h"
#include "runtime/text.h"

namespace gacc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kTensors = "adapter_model.safetensors", kConfiguration = "adapter_config.json";
constexpr std::string_view kRoot = "base_model.model.";  // PEFT puts it before a module's path
constexpr std::string_view kBase = ".base_layer.";       // ... and this into a weight that has an adapter
constexpr int64_t kMostConfiguration = 1'000'000;        // bytes

constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";  // of an adapter's name

bool is_folder(const std::string& path) { return !path.ends_with(".safetensors"); }

// The path of a tensor's module: "h.0.fc" of "h.0.fc.weight".
std::string module_of(std::string_view tensor) { return std::string(tensor.substr(0, tensor.rfind('.'))); }
std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }
bool ends_in(const std::string& module, const std::string& part) {
  return module == part || module.ends_with("." + part);
}

// What a layer's weight is called in the published weights; an error where the layer shares another's and
// [load] has no name for it.
Result<PublishedName> name_of(const Plan& plan, const std::string& weight) {
  const bool tied = std::ranges::count(plan.ties, weight, &PlanTie::name) > 0;
  if (tied && plan.load && std::ranges::count(plan.load->parameters, weight, &PlanLoad::Parameter::name) == 0)
    return Status::error(
        "PEFT's name for {} is not known: the layer is tied, and the published weights have no such tensor. "
        "[load.rename] \"{}\" = \"lm_head.weight\" gives it one",
        weight, weight);
  return published_name(plan, weight);
}

// The path of the module that an adapter belongs to: of the published weight that its rows are.
Result<std::string> module_of(const Plan& plan, const PlanAdapter& adapter) {
  const std::string own = adapter.name + ".weight";
  const bool tied = std::ranges::count(plan.ties, own, &PlanTie::name) > 0;
  const PublishedName as = GACC_TRY(name_of(plan, tied ? own : adapter.weight));
  const int64_t all = plan.find(adapter.weight)->shape[0], rows = plan.find(adapter.name + kB)->shape[0];
  if (!plan.load) return adapter.name;
  const std::vector<int64_t> parts = as.tensors.size() == 1 ? std::vector{all} : as.parts;
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (begin == adapter.begin && parts[i] == rows) return module_of(as.tensors[i]);
    begin += parts[i];
  }
  return Status::error(
      "PEFT cannot name the adapter {}: it is of {} of the {} rows of {}, which is {} in the published "
      "weights; `on` of `lora` says which products are adapted",
      adapter.name, rows, all, adapter.weight, fmt::join(as.tensors, ", "));
}

// Whether a run changes the parameter or statistic, and it is no adapter.
bool is_trained_beside(const Plan& plan, const PlanBuffer& buffer) {
  if (buffer.role == BufferRole::statistic) return plan.find(BufferRole::change, buffer.name) != nullptr;
  return buffer.role == BufferRole::weight && buffer.trainable && !is_of_adapter(plan, buffer.name);
}

// What the layers that read a parameter call it: its own name, and those of the layers that share it.
std::vector<std::string> names_of(const Plan& plan, const std::string& parameter) {
  const std::vector<std::string> shared = shared_as(plan, parameter);
  return shared.empty() ? std::vector{parameter} : shared;
}

// PEFT's target_modules: the last parts of the modules' paths, where these name no other matrix; else the
// whole paths.
std::vector<std::string> targets_of(const Plan& plan, const std::vector<std::string>& modules) {
  const std::set<std::string> adapted(modules.begin(), modules.end());
  std::set<std::string> last;
  for (const std::string& module : modules) last.insert(last_part(module));
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer) || buffer.shape.size() != 2) continue;
    for (const std::string& tensor : published_name(plan, buffer.name).tensors) {
      const std::string module = module_of(tensor);
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

// What most modules have, and the others by their paths. A path that is also the end of another module's begins
// with ^, as PEFT's patterns may.
template <class T>
void add_pattern(json& config, const char* key, const char* pattern, const std::vector<std::string>& modules,
                 const std::vector<T>& values) {
  const T common = most_common(values);
  config[key] = common;
  config[pattern] = json::object();
  for (size_t i = 0; i < modules.size(); ++i) {
    if (values[i] == common) continue;
    const auto ends = [&](const std::string& other) { return ends_in(other, modules[i]); };
    config[pattern][std::ranges::count_if(modules, ends) > 1 ? "^" + modules[i] : modules[i]] = values[i];
  }
}

std::string configuration_of(const Plan& plan, const std::vector<std::string>& modules,
                             const std::set<std::string>& beside) {
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
                 {"modules_to_save", beside.empty() ? json() : json(beside)}};
  add_pattern(config, "r", "rank_pattern", modules, ranks);
  add_pattern(config, "lora_alpha", "alpha_pattern", modules, alphas);
  return config.dump(2) + "\n";
}

// ---- what a configuration means

// Keys that change nothing of what the file's tensors compute. What chooses modules (target_modules and the like)
// is tested by the tensors that are there.
constexpr std::string_view kNeutral[] = {"auto_mapping",      "base_model_name_or_path",
                                         "eva_config",        "exclude_modules",
                                         "fan_in_fan_out",    "inference_mode",
                                         "layers_pattern",    "layers_to_transform",
                                         "lora_dropout",      "megatron_core",
                                         "modules_to_save",   "peft_version",
                                         "qalora_group_size", "revision",
                                         "target_modules",    "task_type"};
// Keys that are read, or of which one value is known.
constexpr std::string_view kRead[] = {"r",         "rank_pattern", "lora_alpha",       "alpha_pattern",
                                      "peft_type", "bias",         "init_lora_weights"};
// Starts that leave the base as it was; the others take the adapter's start out of it.
constexpr std::string_view kStarts[] = {"gaussian", "eva", "orthogonal"};

bool says_nothing(const ordered_json& value) {
  return value.is_null() || value == false ||
         ((value.is_structured() || value.is_string()) && value.empty()) || value == "";
}

// Whether PEFT takes a pattern's key for a module: re.match(r"(.*\.)?(KEY)$", module), of keys without operators
// but a ^ in front; a dot is any letter.
bool names_module(std::string_view key, std::string_view module) {
  const bool whole = key.starts_with('^');
  key.remove_prefix(whole ? 1 : 0);
  if (key.size() > module.size() || (whole && key.size() != module.size())) return false;
  const std::string_view before = module.substr(0, module.size() - key.size());
  const auto same = [](char k, char m) { return k == '.' || k == m; };
  return (before.empty() || before.ends_with('.')) &&
         std::ranges::equal(key, module.substr(before.size()), same);
}

// The number that a configuration gives a module: of the first of the pattern's keys that names it, else of `key`.
std::optional<double> number_of(const ordered_json& config, const char* key, const char* pattern,
                                const std::string& module) {
  if (const auto found = config.find(pattern); found != config.end() && found->is_object())
    for (const auto& [name, value] : found->items())
      if (names_module(name, module))
        return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
  const auto found = config.find(key);
  return found != config.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

// What is wrong with a table of numbers by modules, and the number for those that it does not name.
void check_pattern(const ordered_json& config, const char* key, const char* pattern,
                   std::vector<std::string>& problems) {
  if (const auto found = config.find(key); found != config.end() && !found->is_number())
    problems.push_back(fmt::format("{} is {}, no number", key, found->dump()));
  const auto found = config.find(pattern);
  if (found == config.end() || found->is_null()) return;
  if (!found->is_object()) {
    problems.push_back(fmt::format("{} is {}, no table of modules", pattern, found->dump()));
    return;
  }
  for (const auto& [name, value] : found->items()) {
    if (name.find_first_of("^$*+?[](){}|\\", 1) != std::string::npos ||
        (!name.empty() && std::string_view("$*+?[](){}|\\").find(name.front()) != std::string_view::npos))
      problems.push_back(fmt::format(
          "{} has the key {}, a regular expression; only modules' paths and their ends are known here",
          pattern, shown_name(name)));
    if (!value.is_number())
      problems.push_back(fmt::format("{} of {} is {}, no number", pattern, shown_name(name), value.dump()));
  }
}

// What of a configuration these adapters cannot be.
void check_configuration(const ordered_json& config, const Plan& plan,
                         const std::vector<std::string>& modules, std::vector<std::string>& problems) {
  for (const auto& [key, wanted] : {std::pair("peft_type", "LORA"), {"bias", "none"}})
    if (const auto found = config.find(key); found != config.end() && *found != wanted)
      problems.push_back(fmt::format("{} is {}; only \"{}\" is known here", key, found->dump(), wanted));
  if (const auto start = config.find("init_lora_weights"); start != config.end()) {
    const bool known = start->is_boolean() || start->is_null() ||
                       (start->is_string() && std::ranges::count(kStarts, start->get<std::string>()) > 0);
    if (!known)
      problems.push_back(fmt::format(
          "init_lora_weights is {}: such a start changes the base, too; known here are true, false, "
          "\"{}\"",
          start->dump(), fmt::join(kStarts, "\", \"")));
  }
  for (const auto& [key, value] : config.items())
    if (std::ranges::count(kNeutral, key) + std::ranges::count(kRead, key) == 0 && !says_nothing(value))
      problems.push_back(
          fmt::format("{} is {}: adapters here are alpha / rank * B A, without more", key, value.dump()));
  if (const auto targets = config.find("target_modules"); targets != config.end() && targets->is_array())
    for (const std::string& module : modules) {
      const auto named = [&](const ordered_json& target) {
        return target.is_string() && ends_in(module, target.get<std::string>());
      };
      if (std::ranges::none_of(*targets, named))
        problems.push_back(fmt::format("target_modules does not name {}", module));
    }
  check_pattern(config, "r", "rank_pattern", problems);
  check_pattern(config, "lora_alpha", "alpha_pattern", problems);
  for (size_t i = 0; i < modules.size(); ++i) {
    const double alpha =
        number_of(config, "lora_alpha", "alpha_pattern", modules[i]).value_or(8);  // PEFT's default
    if (alpha != plan.adapters[i].alpha)
      problems.push_back(
          fmt::format("lora_alpha of {} is {}, {} in the model", modules[i], alpha, plan.adapters[i].alpha));
    const auto rank = static_cast<double>(plan.find(plan.adapters[i].name + kA)->shape[0]);
    const double said = number_of(config, "r", "rank_pattern", modules[i]).value_or(rank);
    if (said != rank)
      problems.push_back(fmt::format("r of {} is {}, {} in the model", modules[i], said, rank));
  }
}

Result<std::vector<std::string>> modules_of(const Plan& plan) {
  if (plan.adapters.empty())
    return Status::error("the model has no adapters; `lora` of a layer, or [lora], adds them");
  std::vector<std::string> modules;
  for (const PlanAdapter& adapter : plan.adapters) modules.push_back(GACC_TRY(module_of(plan, adapter)));
  return modules;
}

// A tensor that is trained beside adapters, as PEFT calls it: of a module that is saved whole, or the base of one
// that has an adapter, too.
std::string name_beside(const std::string& tensor, const std::vector<std::string>& modules) {
  const std::string module = module_of(tensor);
  const bool adapted = std::ranges::count(modules, module) > 0;
  return fmt::format("{}{}{}{}", kRoot, module, adapted ? kBase : ".", last_part(tensor));
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

Status check_adapters(const Plan& plan, const Weights& loaded) {
  GACC_TRY(modules_of(plan).status());
  bool beside = false;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_trained_beside(plan, buffer)) continue;
    beside = true;
    for (const std::string& name : names_of(plan, buffer.name)) GACC_TRY(name_of(plan, name).status());
  }
  return beside ? check_published(plan, loaded) : Status();
}

Status check_merge(const Plan& plan) {
  for (const PlanAdapter& adapter : plan.adapters)
    if (const std::vector<std::string> shared = shared_as(plan, adapter.weight); !shared.empty())
      return Status::error(
          "--merge: the weight {} of the adapter {} is shared by tied layers ({}), and the adapter is of one "
          "of "
          "them. --save-adapter keeps it apart; without `tied`, that layer has a matrix of its own",
          adapter.weight, adapter.name, fmt::join(shared, ", "));
  return {};
}

Status prepare_adapter(const std::string& path) {
  const AdapterFiles files = adapter_files(path);
  struct stat about = {};
  if (is_folder(path) && stat(path.c_str(), &about) != 0) return AtomicFile().open(path);
  for (const std::string& file : {files.tensors, files.configuration})
    GACC_TRY(file.empty() ? Status() : AtomicFile().open(file));
  return {};
}

Status save_adapter(const std::string& path, const Plan& plan, const Weights& loaded,
                    const std::vector<NamedTensor>& parameters) {
  const std::vector<std::string> modules = GACC_TRY(modules_of(plan));
  const auto find = [&](const std::string& name) -> const NamedTensor& {
    return *std::ranges::find(parameters, name, &NamedTensor::name);
  };
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < modules.size(); ++i)
    for (const char* suffix : {kA, kB}) {
      NamedTensor& tensor = tensors.emplace_back(find(plan.adapters[i].name + suffix));
      tensor.name = std::string(kRoot) + modules[i] + suffix;
    }
  std::vector<NamedTensor> more;
  for (const PlanBuffer& buffer : plan.buffers)
    if (is_trained_beside(plan, buffer))
      for (const std::string& name : names_of(plan, buffer.name))
        more.emplace_back(find(buffer.name)).name = name;
  if (!more.empty()) GACC_TRY(to_published(plan, loaded, more));
  std::set<std::string> beside;
  for (NamedTensor& tensor : more) {
    const std::string module = module_of(tensor.name);
    if (std::ranges::count(modules, module) == 0) beside.insert(module);
    tensor.name = name_beside(tensor.name, modules);
    tensors.push_back(std::move(tensor));
  }
  const AdapterFiles files = adapter_files(path);
  if (is_folder(path) && mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    return Status::error("cannot make the folder {}: {}", path, std::strerror(errno));
  if (!files.configuration.empty())
    GACC_TRY(write_file_atomically(files.configuration, configuration_of(plan, modules, beside)));
  return save_safetensors(files.tensors, tensors);
}

Status Adapter::open(const std::string& path, const Plan& plan) {
  *this = Adapter();
  std::vector<std::string> problems;
  const std::vector<std::string> modules = GACC_TRY(modules_of(plan));
  const AdapterFiles files = adapter_files(path);
  GACC_TRY(file_.open(files.tensors));
  ordered_json config;
  if (!files.configuration.empty()) {
    const std::string text = GACC_TRY(read_file(files.configuration, kMostConfiguration));
    config = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Status::error("{} is no JSON object", files.configuration);
    check_configuration(config, plan, modules, problems);
  }
  std::set<const StoredTensor*> taken;
  const auto take = [&](const PlanBuffer& buffer, const PublishedName& as,
                        const std::vector<std::string>& names) {
    WeightSource source{&buffer, {}, as.transpose};
    for (const std::string& name : names) {
      const StoredTensor* tensor = file_.find(name);
      if (tensor == nullptr) {
        problems.push_back(fmt::format("{} {} is missing", name, shape_text(buffer.shape)));
        continue;
      }
      taken.insert(tensor);
      source.tensors.push_back(tensor);
      if (!tensor->is_real())
        problems.push_back(
            fmt::format("{} has the type {}; known are F32, F16 and BF16", name, tensor->dtype));
    }
    if (source.tensors.size() < names.size()) return;
    if (const std::vector<int64_t> shape = joined_shape(source, as.parts); shape != buffer.shape)
      problems.push_back(fmt::format("{} is {} in the file, {} in the model", fmt::join(names, " and "),
                                     shape_text(source.tensors.front()->shape), shape_text(buffer.shape)));
    sources_.push_back(std::move(source));
  };
  for (size_t i = 0; i < modules.size(); ++i)
    for (const char* suffix : {kA, kB})
      take(*plan.find(plan.adapters[i].name + suffix), {},
           {fmt::format("{}{}{}", kRoot, modules[i], suffix)});
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer) || is_of_adapter(plan, buffer.name)) continue;
    bool found = false, lacking = false;
    for (const std::string& name : names_of(plan, buffer.name)) {
      const PublishedName as = published_name(plan, name);
      std::vector<std::string> names;
      for (const std::string& tensor : as.tensors) names.push_back(name_beside(tensor, modules));
      const auto is_there = [&](const std::string& one) { return file_.find(one) != nullptr; };
      if (std::ranges::none_of(names, is_there)) {
        lacking = true;
        continue;
      }
      found = true;
      take(buffer, as, names);
    }
    if (!found && is_trained_beside(plan, buffer)) missing_.push_back(buffer.name);
    if (found) check_shared(plan, buffer, config, lacking, problems);
  }
  for (const StoredTensor& tensor : file_.tensors())
    if (!taken.contains(&tensor) && !tensor.counts_batches())
      problems.push_back(
          fmt::format("the model has no {} {}", shown_name(tensor.name), shape_text(tensor.shape)));
  if (!problems.empty())
    return Status::error(problem_list(fmt::format("{} does not fit the model", files.tensors), problems));
  for (const StoredTensor* tensor : taken) GACC_TRY(check_finite(*tensor, files.tensors));
  return {};
}

// A module that PEFT saves whole is a copy of its own: of a weight that layers share, all copies must be there, and
// be the same.
void Adapter::check_shared(const Plan& plan, const PlanBuffer& buffer, const nlohmann::ordered_json& config,
                           bool lacking, std::vector<std::string>& problems) const {
  const std::vector<std::string> shared = shared_as(plan, buffer.name);
  if (shared.empty()) return;
  std::vector<const WeightSource*> copies;
  for (const WeightSource& source : sources_)
    if (source.buffer == &buffer) copies.push_back(&source);
  for (const WeightSource* copy : copies)
    if (copy->tensors.front()->bytes != copies.front()->tensors.front()->bytes) {
      problems.push_back(fmt::format("{} and {} differ, and the model has one weight for both",
                                     shown_name(copies.front()->tensors.front()->name),
                                     shown_name(copy->tensors.front()->name)));
      return;
    }
  const auto saved = config.is_object() ? config.find("modules_to_save") : config.end();
  if (!lacking || copies.empty() || saved == config.end() || !saved->is_array()) return;
  const std::string module = module_of(copies.front()->tensors.front()->name);
  const auto names = [&](const ordered_json& one) {
    return one.is_string() && ends_in(module, one.get<std::string>());
  };
  if (std::ranges::any_of(*saved, names))
    problems.push_back(fmt::format("modules_to_save has a {} of its own, and in the model {} are one weight",
                                   module.substr(kRoot.size()), fmt::join(shared, " and ")));
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
