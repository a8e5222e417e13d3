#include "runtime/weights/adapters.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/atomic_file.h"
#include "runtime/not_downloaded.h"
#include "runtime/text.h"

namespace gacc {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kTensors = "adapter_model.safetensors", kConfiguration = "adapter_config.json";
constexpr std::string_view kRoot = "base_model.model.";   // PEFT puts it before a module's path
constexpr std::string_view kBase = ".base_layer.";        // ... and this into a weight that has an adapter
constexpr int64_t kMostAdapterConfiguration = 1'000'000;  // bytes

constexpr const char *kA = ".lora_A.weight", *kB = ".lora_B.weight";  // of an adapter's name

bool is_folder(const std::string& path) { return !path.ends_with(".safetensors") && !is_gguf(path); }
FileKind kind_of(const std::string& path) { return is_gguf(path) ? FileKind::gguf : FileKind::published; }

// Keys of an adapter's metadata, and names of its matrices, in llama.cpp.
constexpr std::string_view kType = "general.type", kArchitecture = "general.architecture",
                           kLora = "adapter.type", kAlpha = "adapter.lora.alpha";
constexpr const char *kGgufA = ".weight.lora_a", *kGgufB = ".weight.lora_b";

// The path of a tensor's module: "h.0.fc" of "h.0.fc.weight".
std::string module_of(std::string_view tensor) { return std::string(tensor.substr(0, tensor.rfind('.'))); }
std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }
bool ends_in(const std::string& module, const std::string& part) {
  return module == part || module.ends_with("." + part);
}

// Returns PEFT's name of a module, or of a tensor of it, by its name in the published weights.
std::string for_peft(const Plan& plan, const std::string& name) {
  constexpr std::string_view kModule = "module:";  // "module:FILE=PEFT", of [load] modules
  for (std::string_view line : plan.presumes) {
    if (!line.starts_with(kModule)) continue;
    line.remove_prefix(kModule.size());
    const std::string_view theirs = line.substr(0, line.find('='));
    if (name == theirs || (name.starts_with(theirs) && name[theirs.size()] == '.'))
      return std::string(line.substr(theirs.size() + 1)) + name.substr(theirs.size());
  }
  return name;
}

// Returns the name of a layer's weight in the published weights; an error where the layer shares another's and [load]
// has no name for it.
Result<PublishedName> name_of(const Plan& plan, const std::string& weight, FileKind kind) {
  const bool tied = std::ranges::count(plan.ties, weight, &PlanTie::name) > 0;
  if (tied && kind == FileKind::gguf)
    return Status::error("llama.cpp has no name for an adapter of {}: the layer is tied to another one",
                         weight);
  if (tied && plan.load && std::ranges::count(plan.load->parameters, weight, &PlanLoad::Parameter::name) == 0)
    return Status::error(
        "PEFT's name for {} is not known: the layer is tied, and the published weights have no such tensor. "
        "[load.rename] \"{}\" = \"lm_head.weight\" gives it one",
        weight, weight);
  return published_name(plan, weight, kind);
}

// A matrix of the published model that has adapters here. PEFT has one adapter for all of its rows: the ranks of ours
// side by side, each with zeros in B for the rows of others.
struct Module {
  struct Part {
    const PlanAdapter* adapter = nullptr;
    int64_t rank = 0;
    std::vector<RowRun> runs{};  // its rows, of the module's
  };
  std::string path{};  // as the program calls it that reads the adapter
  int64_t rows = 0;
  std::vector<Part> parts{};
  std::string file_path{};  // as the published weights call it; the two may change places in an older adapter

  int64_t rank() const {
    int64_t sum = 0;
    for (const Part& part : parts) sum += part.rank;
    return sum;
  }
  double scale() const { return parts.front().adapter->alpha / static_cast<double>(parts.front().rank); }
  double alpha() const {
    return parts.front().adapter->alpha *
           (static_cast<double>(rank()) / static_cast<double>(parts.front().rank));
  }
  // Returns whether an adapter of this rank is one matrix A for all parts, as PEFT trains it.
  bool shares(int64_t rank) const {
    int64_t all = 0;  // more than `rows` where parts overlap: their sum is no one B then
    for (const Part& part : parts)
      for (const RowRun& run : part.runs) all += run.count;
    return parts.size() > 1 && all <= rows && rank != this->rank() &&
           std::ranges::all_of(parts, [&](const Part& part) { return part.rank == rank; });
  }
};

// The rows of a parameter from `begin` on, of runs that are all of its rows.
std::vector<RowRun> some_of(const std::vector<RowRun>& runs, int64_t begin, int64_t count) {
  std::vector<RowRun> some;
  for (const RowRun& run : runs) {
    const int64_t first = std::clamp<int64_t>(begin, 0, run.count),
                  last = std::clamp<int64_t>(begin + count, 0, run.count);
    if (last > first) some.push_back({run.begin + first, last - first});
    begin -= run.count;
  }
  return some;
}

// The module that an adapter belongs to, with this part alone: that of the published weight that its rows are of.
Result<Module> module_of(const Plan& plan, const PlanAdapter& adapter, FileKind kind) {
  const std::string own = adapter.name + ".weight";
  const bool tied = std::ranges::count(plan.ties, own, &PlanTie::name) > 0;
  const PublishedName as = GACC_TRY(name_of(plan, tied ? own : adapter.weight, kind));
  const std::vector<int64_t>& b = plan.find(adapter.name + kB)->shape;
  const int64_t all = plan.find(adapter.weight)->shape[0], rows = b[0], rank = b[1];
  if (kind == FileKind::published && !plan.load)
    return Module{adapter.name, rows, {{&adapter, rank, {{0, rows}}}}, adapter.name};
  const std::vector<int64_t> parts = as.tensors.size() == 1 ? std::vector{all} : as.parts;
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (adapter.begin >= begin && adapter.begin + rows <= begin + parts[i]) {
      const std::optional<Split> split = split_of(as, all);
      const std::vector<RowRun> runs = runs_of(as, i, split ? all : parts[i]);
      const std::string path = module_of(as.tensors[i]);
      return Module{kind == FileKind::published ? for_peft(plan, path) : path,
                    split ? rows_of(*split) : parts[i],
                    {{&adapter, rank, some_of(runs, adapter.begin - begin, rows)}},
                    path};
    }
    begin += parts[i];
  }
  return Status::error(
      "{} cannot name the adapter {}: it is of {} of the {} rows of {}, which is {} in the published "
      "weights; `on` of `lora` says which products are adapted",
      kind == FileKind::gguf ? "llama.cpp" : "PEFT", adapter.name, rows, all, adapter.weight,
      fmt::join(as.tensors, ", "));
}

// The modules that have adapters, in the order of the plan's first adapter of each.
Result<std::vector<Module>> modules_of(const Plan& plan, FileKind kind = FileKind::published) {
  if (plan.adapters.empty())
    return Status::error("the model has no adapters; `lora` of a layer, or [lora], adds them");
  std::vector<Module> modules;
  for (const PlanAdapter& adapter : plan.adapters) {
    Module one = GACC_TRY(module_of(plan, adapter, kind));
    const auto known = std::ranges::find(modules, one.path, &Module::path);
    if (known == modules.end()) {
      modules.push_back(std::move(one));
      continue;
    }
    const Module::Part& first = known->parts.front();
    if (adapter.alpha * static_cast<double>(first.rank) !=
        first.adapter->alpha * static_cast<double>(one.parts.front().rank))
      return Status::error(
          "the adapters {} and {} are one of the file's, of {}, and differ in alpha / rank; give them the "
          "same",
          first.adapter->name, adapter.name, one.path);
    known->parts.push_back(std::move(one.parts.front()));
  }
  return modules;
}

std::vector<std::string> paths_of(const std::vector<Module>& modules) {
  std::vector<std::string> paths;
  for (const Module& module : modules) paths.push_back(module.path);
  return paths;
}

// Returns whether a run changes the parameter or statistic, and it is no adapter.
bool is_trained_beside(const Plan& plan, const PlanBuffer& buffer) {
  if (buffer.role == BufferRole::statistic) return plan.find(BufferRole::change, buffer.name) != nullptr;
  return buffer.role == BufferRole::weight && buffer.trainable && !is_of_adapter(plan, buffer.name);
}

// Returns the names of a parameter's readers: its own layer's, and those of the layers that share it.
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
      const std::string module = for_peft(plan, module_of(tensor));
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

// Writes the number that most modules have, and the others by their paths. A path that is also the end of another
// module's begins with ^, as PEFT's patterns may.
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

}  // namespace

Result<std::string> adapter_configuration(const Plan& plan, const Weights& loaded) {
  const std::vector<Module> modules = GACC_TRY(modules_of(plan));
  const std::vector<std::string> paths = paths_of(modules);
  std::set<std::string> beside;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_trained_beside(plan, buffer)) continue;
    for (const std::string& name : names_of(plan, buffer.name))
      for (const std::string& tensor : published_name(plan, name).tensors)
        if (const std::string module = for_peft(plan, module_of(tensor));
            std::ranges::count(paths, module) == 0)
          beside.insert(module);
  }
  std::vector<int64_t> ranks;
  std::vector<double> alphas;
  bool transposed = false;
  for (const Module& module : modules) {
    ranks.push_back(module.rank());
    alphas.push_back(module.alpha());
    transposed |= published_name(plan, module.parts.front().adapter->weight).transpose;
  }
  json config = {{"peft_type", "LORA"},
                 {"task_type", plan.predict.positions == "causal" ? json("CAUSAL_LM") : json()},
                 {"base_model_name_or_path", loaded.folder().empty() ? json() : json(loaded.folder())},
                 {"target_modules", targets_of(plan, paths)},
                 {"lora_dropout", 0.0},
                 {"bias", "none"},
                 {"fan_in_fan_out", transposed},
                 {"init_lora_weights", true},
                 {"inference_mode", true},
                 {"modules_to_save", beside.empty() ? json() : json(beside)}};
  add_pattern(config, "r", "rank_pattern", paths, ranks);
  add_pattern(config, "lora_alpha", "alpha_pattern", paths, alphas);
  return config.dump(2) + "\n";
}

namespace {

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

// Returns whether a pattern's key names the module in PEFT: re.match(r"(.*\.)?(KEY)$", module), for keys without
// operators but a ^ in front; a dot is any letter.
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

// Checks a table of numbers by modules, and the number of the modules that it does not name.
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

// Reports the parts of a configuration that these adapters cannot have.
void check_configuration(const ordered_json& config, const std::vector<Module>& modules,
                         std::vector<std::string>& problems) {
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
    for (const Module& module : modules) {
      const auto named = [&](const ordered_json& target) {
        if (!target.is_string()) return false;
        const auto& part = target.get_ref<const std::string&>();
        return ends_in(module.path, part) || ends_in(module.file_path, part);
      };
      if (std::ranges::none_of(*targets, named))
        problems.push_back(fmt::format("target_modules does not name {}", module.path));
    }
  check_pattern(config, "r", "rank_pattern", problems);
  check_pattern(config, "lora_alpha", "alpha_pattern", problems);
  for (const Module& module : modules) {
    const auto rank = static_cast<double>(module.rank());
    const double said = number_of(config, "r", "rank_pattern", module.path).value_or(rank);
    const bool shared = module.shares(static_cast<int64_t>(said));
    const double wanted = shared ? module.parts.front().adapter->alpha : module.alpha();
    const double alpha =
        number_of(config, "lora_alpha", "alpha_pattern", module.path).value_or(8);  // PEFT's default
    if (alpha != wanted)
      problems.push_back(fmt::format("lora_alpha of {} is {}, {} in the model", module.path, alpha, wanted));
    if (said != rank && !shared)
      problems.push_back(fmt::format("r of {} is {}, {} in the model", module.path, said, rank));
  }
}

// Returns whether B has other numbers than zero where none of the module's parts has any.
bool changes_others(const StoredTensor& b, const Module& module, bool shared) {
  std::vector<float> values(static_cast<size_t>(elements_of(b)));
  read_elements(b, 0, values);
  const int64_t width = b.shape.back();
  int64_t column = 0;
  for (const Module::Part& part : module.parts) {
    for (const RowRun& run : part.runs)
      for (int64_t row = run.begin; row < run.begin + run.count; ++row)
        std::fill_n(values.begin() + row * width + column, part.rank, 0.0F);
    column += shared ? 0 : part.rank;
  }
  return std::ranges::any_of(values, [](float value) { return value != 0; });
}

// A tensor that is trained beside adapters, as PEFT calls it: of a module that is saved whole, or the base of one
// that has an adapter, too.
std::string name_beside(const std::string& tensor, const std::vector<std::string>& modules) {
  const std::string module = module_of(tensor);
  const bool adapted = std::ranges::count(modules, module) > 0;
  return fmt::format("{}{}{}{}", kRoot, module, adapted ? kBase : ".", last_part(tensor));
}

}  // namespace

bool is_in_adapter(const Plan& plan, const PlanBuffer& buffer) {
  return is_of_adapter(plan, buffer.name) || is_trained_beside(plan, buffer);
}

AdapterFiles adapter_files(const std::string& path) {
  if (path.empty()) return {};
  const std::string folder = path.substr(0, path.rfind('/') + 1), name = path.substr(folder.size());
  if (name == kTensors) return {path, folder + std::string(kConfiguration)};
  if (!is_folder(path)) return {path, ""};
  return {file_in(path, kTensors), file_in(path, kConfiguration)};
}

bool is_adapter(const std::string& path) {
  if (!is_gguf(path)) return is_there(adapter_files(path).configuration);
  WeightFile file;
  return file.open(path) && file.gguf() != nullptr && file.gguf()->text(kType) == "adapter";
}

Status check_adapters(const Plan& plan, const Weights& loaded, FileKind kind) {
  GACC_TRY(modules_of(plan, kind).status());
  std::vector<std::string> beside;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_trained_beside(plan, buffer)) continue;
    if (kind == FileKind::gguf)
      return Status::error("llama.cpp's file has adapters alone, and {} is trained beside them", buffer.name);
    beside.push_back(buffer.name);
    for (const std::string& name : names_of(plan, buffer.name)) GACC_TRY(name_of(plan, name, kind).status());
  }
  GACC_TRY(check_whole(plan, beside));
  return beside.empty() ? Status() : check_published(plan, loaded);
}

Status check_merge(const Plan& plan) {
  for (const PlanAdapter& adapter : plan.adapters)
    if (const std::vector<std::string> shared = shared_as(plan, adapter.weight); !shared.empty())
      return Status::error(
          "--merge: the weight {} of the adapter {} is shared by tied layers ({}), and the adapter is of "
          "one of them. --save-adapter keeps it apart; without `tied`, that layer has a matrix of its own",
          adapter.weight, adapter.name, fmt::join(shared, ", "));
  return {};
}

namespace {

// Finds a parameter, which is there.
const NamedTensor& named(const std::vector<NamedTensor>& parameters, const std::string& name) {
  return *std::ranges::find(parameters, name, &NamedTensor::name);
}

// A module's matrices, of all parts. B has zeros where rows are of others.
struct Matrices {
  NamedTensor a{}, b{};
};
Matrices matrices_of(const Module& module, const std::vector<NamedTensor>& parameters) {
  Matrices made{.a = {"", {module.rank(), 0}, {}}, .b = {"", {module.rows, module.rank()}, {}}};
  made.b.data.resize(static_cast<size_t>(module.rows * module.rank()));
  int64_t column = 0;
  for (const Module::Part& part : module.parts) {
    const NamedTensor& ours = named(parameters, part.adapter->name + kA);
    made.a.shape[1] = ours.shape[1];
    made.a.data.insert(made.a.data.end(), ours.data.begin(), ours.data.end());
    auto from = named(parameters, part.adapter->name + kB).data.begin();
    for (const RowRun& run : part.runs)
      for (int64_t row = run.begin; row < run.begin + run.count; ++row, from += part.rank)
        std::copy_n(from, part.rank, made.b.data.begin() + row * module.rank() + column);
    column += part.rank;
  }
  return made;
}

}  // namespace

Result<std::vector<NamedTensor>> adapter_tensors(const Plan& plan, const Weights& loaded,
                                                 const std::vector<NamedTensor>& parameters) {
  const std::vector<Module> modules = GACC_TRY(modules_of(plan));
  const std::vector<std::string> paths = paths_of(modules);
  std::vector<NamedTensor> tensors;
  for (const Module& module : modules) {
    Matrices made = matrices_of(module, parameters);
    made.a.name = std::string(kRoot) + module.path + kA;
    made.b.name = std::string(kRoot) + module.path + kB;
    tensors.push_back(std::move(made.a));
    tensors.push_back(std::move(made.b));
  }
  std::vector<NamedTensor> more;
  for (const PlanBuffer& buffer : plan.buffers)
    if (is_trained_beside(plan, buffer))
      for (const std::string& name : names_of(plan, buffer.name))
        more.emplace_back(named(parameters, buffer.name)).name = name;
  if (!more.empty()) GACC_TRY(to_published(plan, loaded, more));
  for (NamedTensor& tensor : more) {
    tensor.name = name_beside(for_peft(plan, tensor.name), paths);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// llama.cpp multiplies by alpha / rank with one alpha for all. Where ours differ it is 0, which drops that factor, and
// each B has its own.
Result<std::string> adapter_gguf(const Plan& plan, std::string_view architecture,
                                 const std::vector<NamedTensor>& parameters) {
  const std::vector<Module> modules = GACC_TRY(modules_of(plan, FileKind::gguf));
  const double first = modules.front().alpha();
  const bool alike =
      std::ranges::all_of(modules, [&](const Module& module) { return module.alpha() == first; });
  GgufMetadata metadata;
  metadata.add(kType, "adapter");
  metadata.add(kArchitecture, architecture);
  metadata.add(kLora, "lora");
  metadata.add(kAlpha, alike ? static_cast<float>(first) : 0.0f);
  std::vector<GgufOutput> tensors;
  for (const Module& module : modules) {
    Matrices made = matrices_of(module, parameters);
    if (!alike)
      for (float& number : made.b.data) number = static_cast<float>(number * module.scale());
    for (const auto& [suffix, tensor] : {std::pair(kGgufA, &made.a), {kGgufB, &made.b}})
      tensors.push_back({module.path + suffix, "F32", tensor->shape,
                         GACC_TRY(gguf_data("F32", tensor->data, module.path))});
  }
  return gguf_bytes(metadata, tensors);
}

namespace {

// Reports metadata that is not that of an adapter of llama.cpp.
void check_metadata(const Gguf& gguf, std::vector<std::string>& problems) {
  for (const auto& [key, wanted] : {std::pair(kType, "adapter"), {kLora, "lora"}})
    if (const auto text = gguf.text(key); text != wanted)
      problems.push_back(fmt::format("{} is {}; that of an adapter is \"{}\"", key,
                                     text ? shown_name(*text) : "missing", wanted));
  if (!gguf.number(kAlpha)) problems.push_back(fmt::format("{} is missing", kAlpha));
}

}  // namespace

Status Adapter::open(const std::string& path, const Plan& plan) {
  *this = Adapter();
  std::vector<std::string> problems;
  const FileKind kind = kind_of(path);
  if (kind == FileKind::gguf && !plan.gguf) return Status::error("{}: {}", path, kNoGguf);
  std::vector<Module> modules = GACC_TRY(modules_of(plan, kind));
  const AdapterFiles files = adapter_files(path);
  std::error_code none;
  if (!std::filesystem::exists(path, none))
    return Status::error(
        "cannot read the adapter {}: it is not there{}", path,
        not_downloaded(path).empty()
            ? "; it is a folder with adapter_config.json, or a file NAME.safetensors or NAME.gguf"
            : not_downloaded(path));
  if (is_folder(path) && !std::filesystem::is_directory(path, none))
    return Status::error(
        "{}: is no folder; an adapter is one, with adapter_config.json, or a file NAME.safetensors or "
        "NAME.gguf",
        path);
  GACC_TRY(file_.open(files.tensors));
  // Adapters that were made before PEFT's model had another name of a module have the file's.
  for (Module& module : modules)
    if (file_.find(std::string(kRoot) + module.path + kA) == nullptr &&
        file_.find(std::string(kRoot) + module.file_path + kA) != nullptr)
      std::swap(module.path, module.file_path);
  const std::vector<std::string> paths = paths_of(modules);
  const Gguf* gguf = file_.gguf();
  if ((gguf != nullptr) != (kind == FileKind::gguf))
    return Status::error("{}: is {}a GGUF, and its name says the other", path, gguf == nullptr ? "not " : "");
  if (gguf != nullptr) check_metadata(*gguf, problems);
  ordered_json config;
  if (!files.configuration.empty()) {
    const std::string text = GACC_TRY(read_file(files.configuration, kMostAdapterConfiguration));
    config = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) return Status::error("{} is no JSON object", files.configuration);
    check_configuration(config, modules, problems);
  }
  std::set<const StoredTensor*> taken;
  const auto look = [&](const std::string& name, const std::vector<int64_t>& wanted) {
    const StoredTensor* tensor = file_.find(name);
    if (tensor == nullptr)
      problems.push_back(fmt::format("{} {} is missing", name, shape_text(wanted)));
    else if (taken.insert(tensor); !tensor->is_real())
      problems.push_back(fmt::format("{} has the type {}; known are F32, F16 and BF16", name, tensor->dtype));
    return tensor;
  };
  const auto differs = [&](const std::string& name, const StoredTensor& tensor,
                           const std::vector<int64_t>& wanted) {
    problems.push_back(fmt::format("{} is {} in the file, {} in the model", name, shape_text(tensor.shape),
                                   shape_text(wanted)));
  };
  const auto take = [&](const PlanBuffer& buffer, const PublishedName& as,
                        const std::vector<std::string>& names) {
    WeightSource source{&buffer, {}, as.transpose};
    const std::optional<Split> split = split_of(as, buffer.shape.empty() ? 0 : buffer.shape.front());
    if (split) source.runs = {runs_of(*split)};
    for (const std::string& name : names)
      if (const StoredTensor* tensor = look(name, buffer.shape)) source.tensors.push_back(tensor);
    if (source.tensors.size() < names.size()) return;
    if (joined_shape(source, as) != buffer.shape)
      differs(fmt::format("{}{}", fmt::join(names, " and "), split_text(split)), *source.tensors.front(),
              buffer.shape);
    sources_.push_back(std::move(source));
  };
  for (const Module& module : modules) {
    const std::string path_of = gguf != nullptr ? module.path : std::string(kRoot) + module.path,
                      a_name = path_of + (gguf != nullptr ? kGgufA : kA),
                      b_name = path_of + (gguf != nullptr ? kGgufB : kB);
    const int64_t in = plan.find(module.parts.front().adapter->name + kA)->shape[1];
    std::vector<int64_t> a_shape = {module.rank(), in}, b_shape = {module.rows, module.rank()};
    const StoredTensor *a = look(a_name, a_shape), *b = look(b_name, b_shape);
    if (a == nullptr || b == nullptr) continue;
    const bool shared = !a->shape.empty() && module.shares(a->shape.front());
    if (shared) a_shape.front() = b_shape.back() = a->shape.front();
    const size_t before = problems.size();
    if (a->shape != a_shape) differs(a_name, *a, a_shape);
    if (b->shape != b_shape) differs(b_name, *b, b_shape);
    if (problems.size() > before) continue;
    const double alpha = gguf != nullptr ? gguf->number(kAlpha).value_or(0) : 0;
    const double scale = alpha == 0 ? 1 : alpha / static_cast<double>(b_shape.back());
    int64_t column = 0;
    for (const Module::Part& part : module.parts) {
      WeightSource of_a{plan.find(part.adapter->name + kA), {a}},
          of_b{plan.find(part.adapter->name + kB), {b}};
      if (!shared) of_a.runs = {{{column, part.rank}}};
      of_b.runs = {part.runs};
      if (gguf != nullptr) of_b.factor = static_cast<float>(scale / module.scale());
      of_b.column = shared ? 0 : column;
      sources_.push_back(std::move(of_a));
      sources_.push_back(std::move(of_b));
      column += part.rank;
    }
    if (b->is_real() && changes_others(*b, module, shared))
      problems.push_back(
          fmt::format("{} changes rows of {} that have no adapter in the model, or with a matrix A of others",
                      b_name, module.path));
  }
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_saved(buffer) || is_of_adapter(plan, buffer.name)) continue;
    bool found = false, lacking = false;
    for (const std::string& name : names_of(plan, buffer.name)) {
      const PublishedName as = published_name(plan, name);
      std::vector<std::string> names;
      for (const std::string& tensor : as.tensors)
        names.push_back(name_beside(for_peft(plan, tensor), paths));
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
