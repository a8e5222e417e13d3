#include "frontend/loaded_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "frontend/family.h"
#include "frontend/rope_scaling.h"

namespace gacc {

namespace frontend {

namespace {

constexpr std::string_view kFamily = "family=", kWindow = "/window", kScaling = "/rope/scaling",
                           kScalingType = "/rope/scaling/type";
constexpr std::string_view kAnswered = "config.";  // names of what [load.config] says
// Reads what is said of a type that no family has and that the model answers for.
constexpr std::string_view kLikeMost = "llama";

bool alike(const ConfigValue& a, const ConfigValue& b) {
  const auto *list = a.get<std::vector<ConfigValue>>(), *other = b.get<std::vector<ConfigValue>>();
  if (list != nullptr && other != nullptr) return std::ranges::equal(*list, *other, alike);
  const std::optional<double> x = a.number(), y = b.number();
  if (!x || !y) return a == b;
  return std::abs(*x - *y) <= 1e-6 * std::max(std::abs(*x), std::abs(*y));
}

// Returns scaling_numbers of an attention layer. Null without a scaling, and where the layer does not say how wide its
// heads are.
ConfigValue numbers_of(const Node& attention) {
  const Node *rope = attention.find("rope"), *channels = attention.find("head_dim");
  const Node* scaling = rope == nullptr ? nullptr : rope->find("scaling");
  if (scaling == nullptr || channels == nullptr) return {};
  Diag unreported;
  const Values keys = read_table(*scaling, tables::rope_scaling, unreported, "`scaling`", "scaling");
  const Node *theta = rope->find("theta"), *partial = rope->find("partial");
  const double share = partial == nullptr ? 1 : partial->number();
  const auto rotated = static_cast<int64_t>(std::round(share * channels->number()));
  if (unreported.failed() || keys.type == nullptr || !check_rope_scaling(keys, rotated, unreported))
    return {};
  return scaling_numbers(keys, theta == nullptr ? 1e4 : theta->number(), rotated);
}

// Returns the path of the attention layer whose scaled positions a path is of; "" of another path.
std::string_view scaled_layer(std::string_view path) {
  const size_t at = path.find(fmt::format("{}/", kScaling));
  return at == path.npos ? "" : path.substr(0, at);
}

// Returns what decides the function at a place: a window as long as the sequence is none.
ConfigValue decisive(const Node& model, const std::string& path, int64_t length) {
  if (path.ends_with(kScaling)) {
    const Node* attention = node_at(model, std::string_view(path).substr(0, path.size() - kScaling.size()));
    return attention == nullptr ? ConfigValue{} : numbers_of(*attention);
  }
  const ConfigValue value = value_at(model, path);
  const bool hides_nothing = path.ends_with(kWindow) && value.number() && *value.number() >= length;
  return hides_nothing ? ConfigValue{} : value;
}

ConfigValue parse_value(const std::string& text) {
  std::string unread;
  const std::optional<ConfigValues> parsed = parse_config(fmt::format("{{\"it\": {}}}", text), unread);
  return parsed && !parsed->empty() ? parsed->front().second : ConfigValue{text};
}

// For messages: a string without quotes.
std::string plain(const ConfigValue& value) {
  const std::string* word = value.get<std::string>();
  return word != nullptr ? *word : value.is_null() ? "nothing" : shown_text(value);
}

class LoadedConfig {
 public:
  explicit LoadedConfig(const ModelRecord& model) : model_(model) {
    for (const std::string& line : model.presumes) {
      const size_t equals = std::min(line.find('='), line.size());
      said_[line.substr(0, equals)].push_back(line.substr(std::min(equals + 1, line.size())));
    }
  }

  std::vector<std::string> compare(std::string_view config, bool gguf) {
    gguf_ = gguf;
    std::string why;
    std::optional<ConfigValues> values = parse_config(config, why);
    if (!values) return {why};
    // Leaves the head to a model file that somebody wrote.
    if (!has_record()) std::erase_if(*values, [](const auto& each) { return each.first == "architectures"; });
    std::vector<Family> families;
    if (const std::string* own = own_family()) families.push_back({"family.toml", *own});
    families.insert(families.end(), built_in_families().begin(), built_in_families().end());
    PublishedOptions options{.gguf = gguf};
    if (said_.contains("positions")) options.context = length();
    std::string problems;
    Families all(families, problems);
    const std::optional<Families::Chosen> chosen = choose(all, *values, gguf);
    if (!chosen) return problems_;
    problems.clear();
    const std::optional<FamilyReading> read = all.read(*chosen, *values, "", options, /*loaded=*/true);
    if (!read) return sentences(problems);
    read_ = &*read;
    for (const auto& [key, value] : read->config)
      if (const auto answer = said_.find(std::string(kAnswered) + key); answer != said_.end())
        if (std::ranges::none_of(answer->second, [&, &given = value](const auto& each) {
              return alike(parse_value(each), given);
            }))
          add(fmt::format("{} is {}, {} in the model", key, value_text(value), answer->second.front()));
    for (const auto& [key, value] : read->unknown)
      if (!is_answered(key)) unknown(key, value);
    if (has_record())
      compare_places();
    else
      compare_names();
    return problems_;
  }

 private:
  bool has_record() const { return said_.contains("family"); }
  bool is_answered(const std::string& key) const { return said_.contains(std::string(kAnswered) + key); }
  int64_t length() const {
    const auto positions = said_.find("positions");
    return positions == said_.end() ? static_cast<int64_t>(kLargest)
                                    : std::atoll(positions->second.front().c_str());
  }
  void add(std::string problem) {
    if (std::ranges::count(problems_, problem) == 0) problems_.push_back(std::move(problem));
  }
  void unknown(const std::string& key, const ConfigValue& value) {
    add(
        fmt::format("{} is {}, and what that changes is not known here. Where the model file does the same, "
                    "`[load.config]` with {} = {} says so",
                    value_text({key}), shown_text(value), key, shown_text(value)));
  }

  // The text of a family that is not built in, as the model carries it.
  const std::string* own_family() {
    const auto said = said_.find("family");
    if (said == said_.end()) return nullptr;
    const ConfigValue value = parse_value(said->second.front());
    if (const std::string* text = value.get<std::string>()) own_family_ = *text;
    return own_family_.find('\n') == std::string::npos ? nullptr : &own_family_;
  }

  // Returns the family that reads what is said; nothing and a problem where none does.
  std::optional<Families::Chosen> choose(Families& all, const ConfigValues& values, bool gguf) {
    const char* key = gguf ? "general.architecture" : "model_type";
    const auto type = std::ranges::find(values, key, &ConfigValues::value_type::first);
    const bool typeless = type == values.end() || type->second.is_null();
    const std::string family = own_family_.find('\n') == std::string::npos ? own_family_ : "family";
    if (typeless || is_answered(key)) return all.named(has_record() ? family : kLikeMost);
    if (std::optional<Families::Chosen> chosen = all.choose(values, "", gguf)) return chosen;
    if (has_record())
      add(fmt::format("{} is {}, {} in the model", key, value_text(type->second), family_type(all, family)));
    else
      add(fmt::format(
          "{} is {}, and what it computes besides what its keys say is not known here. Where the model "
          "file does the same, `[load.config]` with {} = {} says so",
          key, value_text(type->second), key, value_text(type->second)));
    return std::nullopt;
  }

  static std::string family_type(Families& all, const std::string& family) {
    const std::optional<Families::Chosen> own = all.named(family);
    const Node* match = own ? own->tree.find("match") : nullptr;
    std::vector<std::string> types;
    if (match != nullptr)
      for (const Node& type : match->items) types.push_back(value_text({type.text}));
    return fmt::format("{}", fmt::join(types, " or "));
  }

  // Each line of a report of the compiler as a sentence: without file and kind.
  static std::vector<std::string> sentences(std::string_view lines) {
    constexpr std::string_view kError = ": error: ";
    std::vector<std::string> all;
    while (!lines.empty()) {
      std::string_view line = lines.substr(0, lines.find('\n'));
      lines.remove_prefix(std::min(line.size() + 1, lines.size()));
      line = line.substr(0, line.rfind(" ["));
      all.emplace_back(line.substr(std::min(line.find(kError) + kError.size(), line.size())));
    }
    return all;
  }

  const ConfigValue* given(const std::string& key) const {
    const auto found = std::ranges::find(read_->config, key, &ConfigValues::value_type::first);
    return found == read_->config.end() || found->second.is_null() ? nullptr : &found->second;
  }

  // Returns the keys that decide a place, or a table that it is in.
  std::set<std::string> keys_of(std::string_view path) const {
    std::set<std::string> keys;
    for (const FamilyValue& each : read_->values)
      if (each.path == path || (path.ends_with(kScaling) && each.path.starts_with(path)))
        keys.insert(each.keys.begin(), each.keys.end());
    const size_t up = path.rfind('/');
    if (!keys.empty() || up == path.npos || up == 0) return keys;
    const std::string table = fmt::format("{}/when", path.substr(0, up));
    return path == table ? keys_of(path.substr(0, up)) : keys_of(table);
  }

  // "rope_scaling.factor is 8.0 and rope_scaling.type is "linear"": the keys of a place. What is missing of them is
  // said of those that are no key of an object.
  std::string told_of(std::string_view path) const {
    std::vector<std::string> told, missing;
    for (const std::string& key : keys_of(path))
      if (const ConfigValue* value = given(key))
        told.push_back(fmt::format("{} is {}", key, shown_text(*value)));
      else
        missing.push_back(key);
    const bool none = told.empty();
    for (const std::string& key : missing)
      if (!none && key.find('.') == key.npos) told.insert(told.begin(), fmt::format("{} is missing", key));
    if (!none) return fmt::format("{}", fmt::join(told, " and "));
    const auto shortest = std::ranges::min_element(missing, {}, &std::string::size);
    if (shortest == missing.end()) return fmt::format("{} is missing", last_part(path));
    const std::string object = shortest->substr(0, shortest->find('.'));
    return fmt::format("{} is missing", is_object(object) ? *shortest : object);
  }
  // Returns the key that a place is named by, where that is missing, and the object that it would be in is not.
  std::string missing_key(std::string_view path) const {
    for (const std::string& key : keys_of(path)) {
      const size_t dot = key.rfind('.');
      const std::string_view name = std::string_view(key).substr(dot == key.npos ? 0 : dot + 1);
      if (name == last_part(path) && given(key) == nullptr &&
          (dot == key.npos || is_object(key.substr(0, dot))))
        return key;
    }
    return "";
  }
  bool is_object(const std::string& name) const {
    return std::ranges::any_of(read_->config,
                               [&](const auto& each) { return each.first.starts_with(name + "."); });
  }

  // Says that a place has another value than in the model, with the keys that it has it from.
  void differs(std::string_view path, const ConfigValue& theirs, const ConfigValue& ours) {
    if (const std::string key = missing_key(path); theirs.is_null() && !key.empty())
      return add(fmt::format("{} is missing, {} in the model", key, plain(ours)));
    std::vector<ConfigValue> values;
    for (const std::string& key : keys_of(path))
      if (const ConfigValue* value = given(key)) values.push_back(*value);
    // The key alone says what the place has.
    const bool alone =
        values.size() == 1 && (alike(values[0], theirs) || values[0].get<std::string>() != nullptr);
    const std::string_view place = path.ends_with("/when") ? path.substr(0, path.rfind('/')) : path;
    std::string how =
        values.empty() && !theirs.is_null() ? fmt::format(", which is {}", shown_text(theirs)) : "";
    if (!alone && !values.empty()) how = fmt::format(": `{}` is {}", last_part(place), plain(theirs));
    add(fmt::format("{}{}, {} in the model", told_of(path), how, plain(ours)));
  }
  static std::string_view last_part(std::string_view path) { return path.substr(path.rfind('/') + 1); }

  // Say whether the positions of a layer are scaled in what is read, and in the model.
  bool is_scaled(std::string_view layer) const {
    return node_at(read_->model, fmt::format("{}{}", layer, kScaling)) != nullptr;
  }
  bool is_scaled_here(std::string_view layer) const {
    const auto said = said_.find(fmt::format("{}{}", layer, kScalingType));
    return said != said_.end() && !parse_value(said->second.front()).is_null();
  }

  // Compares a model that a family made, place by place. Of scaled positions and ones that are not, `type` says all.
  void compare_places() {
    std::set<std::string_view> scaled_alike;  // layers
    for (const auto& [path, values] : said_) {
      if (!path.starts_with('/') || path.starts_with(gguf_ ? "/load" : "/gguf")) continue;
      const ConfigValue ours = parse_value(values.front()), theirs = decisive(read_->model, path, length());
      if (path.ends_with(kScaling)) {
        if (!ours.is_null() && alike(ours, theirs))
          scaled_alike.insert(std::string_view(path).substr(0, path.size() - kScaling.size()));
        continue;
      }
      if (alike(ours, theirs)) continue;
      const std::string_view layer = scaled_layer(path);
      if (!layer.empty() && (scaled_alike.contains(layer) ||
                             (is_scaled(layer) != is_scaled_here(layer) && !path.ends_with(kScalingType))))
        continue;
      differs(path, theirs, ours);
    }
  }

  // Compares a model file that somebody wrote: what its layers do, in whatever order they stand.
  void compare_names() {
    if (const Node* layers = read_->model.find("layers")) compare_names_of(*layers, "/layers");
    if (said_.contains("window") && !found_.contains("window")) differs_from("window", window_path_, {});
    if (said_.contains("theta") && !found_.contains("theta"))
      add("it has no rotary positions; the model has them");
    if (said_.contains("scaling.rope_type") && !found_.contains("scaling.rope_type"))
      add(fmt::format("{}; the model's positions are scaled", told_of(scaling_path_)));
    const bool tied = found_.contains("tied");
    if (tied != model_.tied && !tied_path_.empty()) differs(tied_path_, {tied}, {model_.tied});
    for (const FamilyValue& each : read_->values)
      if (!each.keys.empty() && is_of_layers(each.path) && !is_compared(each.path) &&
          std::ranges::none_of(each.keys, [&](const std::string& key) { return is_answered(key); }))
        add(
            fmt::format("{}, and what that changes is not known here. `[load.config]` with {} says what the "
                        "model file does",
                        told_of(each.path), *each.keys.begin()));
  }

  static bool is_of_layers(std::string_view path) {
    return path.starts_with("/layers/") && is_decisive(path);
  }
  // Says whether a place is compared by its name, or the tensors show it.
  static bool is_compared(std::string_view path) {
    constexpr std::string_view kCompared[] = {"activation", "bias",  "causal",   "eps",     "fn",
                                              "head_dim",   "heads", "kv_heads", "partial", "theta",
                                              "tied",       "when",  "window"};
    return std::ranges::count(kCompared, last_part(path)) > 0 || !scaled_layer(path).empty();
  }

  void compare_names_of(const Node& node, const std::string& path) {
    for (size_t i = 0; i < node.items.size(); ++i)
      compare_names_of(node.items[i], path + place_of(node.items[i], i));
    if (const Node* type = node.find("type"); type != nullptr && type->text == "attention") {
      window_path_ = path + "/window";
      scaling_path_ = path + std::string(kScaling);
      const ConfigValue numbers = numbers_of(node);
      const auto ours = said_.find("scaling");
      scaled_alike_ = ours != said_.end() && !numbers.is_null() &&
                      std::ranges::any_of(
                          ours->second, [&](const auto& text) { return alike(parse_value(text), numbers); });
    }
    for (const Entry& entry : node.entries) {
      const std::string place = fmt::format("{}/{}", path, entry.key);
      if (entry.value.is_table() || entry.value.is_list()) {
        if (entry.value.is_table() || (!entry.value.items.empty() && entry.value.items.front().is_table()))
          compare_names_of(entry.value, place);
        continue;
      }
      if (entry.key == "tied") {
        found_.insert("tied");
        tied_path_ = place;
      }
      if (is_compared(place) || place.ends_with("/scaling/type")) compare_name(place, to_value(entry.value));
    }
  }

  void compare_name(const std::string& path, const ConfigValue& theirs) {
    const std::string_view key = last_part(path);
    const bool scaled = !scaled_layer(path).empty();
    const std::string name = scaled ? fmt::format("scaling.{}", key == "type" ? "rope_type" : key)
                                    : std::string(key == "fn" ? "activation" : key);
    found_.insert(name);
    if (name == "tied" || name == "bias" || (scaled && scaled_alike_)) return;
    const auto ours = said_.find(name);
    if (name == "window" && theirs.number().value_or(0) >= static_cast<double>(length())) {
      found_.erase(name);
      return;
    }
    if (ours == said_.end()) {
      if (name == "theta") add(fmt::format("{}; the model has no rotary positions", told_of(path)));
      if (name == "window") differs(path, theirs, {});
      if (scaled)
        add(fmt::format("{}; the model's positions are not scaled",
                        told_of(path.substr(0, path.rfind('/')))));
      return;  // what is not there needs no value; parameters that it would need are missing
    }
    if (std::ranges::none_of(ours->second,
                             [&](const auto& text) { return alike(parse_value(text), theirs); }))
      differs_from(name, path, theirs);
  }
  void differs_from(const std::string& name, const std::string& path, const ConfigValue& theirs) {
    differs(path, theirs, {fmt::format("{}", fmt::join(said_.at(name), " and "))});
  }

  const ModelRecord& model_;
  std::map<std::string, std::vector<std::string>, std::less<>> said_;
  std::set<std::string, std::less<>> found_;  // by name, of what the family gives
  std::string window_path_, scaling_path_, tied_path_;
  bool scaled_alike_ = false;
  std::string own_family_;
  bool gguf_ = false;
  const FamilyReading* read_ = nullptr;
  std::vector<std::string> problems_;
};

// Says whether somebody took a layer out of the model file that the family always has.
bool is_taken_out(const Node& model, const Node& family, std::string_view path) {
  for (size_t at = path.find("/@"); at != path.npos; at = path.find("/@", at + 1)) {
    const std::string_view layer = path.substr(0, path.find('/', at + 1));
    if (node_at(model, layer) != nullptr) continue;
    const Node* theirs = node_at(family, layer);
    return theirs != nullptr && theirs->find("when") == nullptr;
  }
  return false;
}

// Adds the family, and what the model file gives at the places that it decides.
void add_record(const Node& model, const Node& said, ir::Texts& lines, Diag& diag) {
  constexpr std::string_view kPositions = "positions=";
  auto length = static_cast<int64_t>(kLargest);
  for (const std::string& line : lines)
    if (line.starts_with(kPositions)) length = std::atoll(line.c_str() + kPositions.size());
  std::vector<Family> families = built_in_families();
  const bool whole = said.text.find('\n') != std::string::npos;
  if (whole) families.insert(families.begin(), {"family.toml", said.text});
  std::string problems;
  const auto chosen = Families(families, problems).named(whole ? "family" : said.text);
  if (!chosen) {
    Words words;
    for (const Family& family : families) words.emplace_back(name_of(family));
    diag.error(Kind::unknown_name, said.at, "there is no family `{}`{}{}", whole ? "" : said.text,
               did_you_mean(said.text, words), problems);
    return;
  }
  lines.push_back(fmt::format("{}{}", kFamily, value_text({said.text})));
  std::string scaled;
  for (const std::string& path : decided_paths(chosen->tree)) {
    if (is_taken_out(model, chosen->tree, path)) continue;
    const auto note = [&](const std::string& place) {
      lines.push_back(fmt::format("{}={}", place, value_text(decisive(model, place, length))));
    };
    if (const std::string_view layer = scaled_layer(path); !layer.empty() && layer != scaled) {
      scaled = layer;
      note(fmt::format("{}{}", layer, kScaling));
    }
    note(path);
  }
}

}  // namespace

void note_family(const Node& model, ir::Module& module, Diag& diag) {
  const Node* load = model.find("load");
  if (diag.failed() || load == nullptr) return;
  ir::Texts lines = *module.results.load_presumes;
  if (const Node* modules = load->find("modules"))
    for (const Entry& entry : modules->entries)
      lines.push_back(fmt::format("module:{}={}", entry.key, entry.value.text));
  if (const Node* said = load->find("family")) add_record(model, *said, lines, diag);
  if (!lines.empty()) module.results.load_presumes = lines;
}

}  // namespace frontend

std::vector<std::string> config_problems(std::string_view config, bool gguf, const ModelRecord& model) {
  return frontend::LoadedConfig(model).compare(config, gguf);
}

}  // namespace gacc
