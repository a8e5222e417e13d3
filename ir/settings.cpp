// See settings.h.
#include "ir/settings.h"

#include <fmt/format.h>

#include <charconv>

#include "ir/diag.h"

namespace gacc::ir {

namespace {

// What an Attr must be for a setting of the type, and the setting's value of it.
std::string_view form_of(const int64_t&) { return "an integer"; }
std::string_view form_of(const double&) { return "a number"; }
std::string_view form_of(const bool&) { return "true or false"; }
std::string_view form_of(const std::string&) { return "a text"; }
std::string_view form_of(const DType&) { return "an element type"; }
std::string_view form_of(const Texts&) { return "a list of texts"; }
std::string_view form_of(const std::vector<int64_t>&) { return "a list of integers"; }
std::string_view form_of(const std::vector<double>&) { return "a list of numbers"; }
std::string_view form_of(const Attr&) { return "a value"; }

template <class T>
std::optional<T> from_attr(const Attr& attr, const T&) {
  const T* value = std::get_if<T>(&attr);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}
std::optional<Attr> from_attr(const Attr& attr, const Attr&) { return attr; }
std::optional<double> from_attr(const Attr& attr, const double&) {
  if (const auto* integer = std::get_if<int64_t>(&attr)) return static_cast<double>(*integer);
  const double* real = std::get_if<double>(&attr);
  return real != nullptr ? std::optional(*real) : std::nullopt;
}
std::optional<DType> from_attr(const Attr& attr, const DType&) {
  const auto* text = std::get_if<std::string>(&attr);
  return text != nullptr ? parse_dtype(*text) : std::nullopt;
}
std::optional<Texts> from_attr(const Attr& attr, const Texts&) {
  if (const auto* none = std::get_if<std::vector<int64_t>>(&attr); none != nullptr && none->empty())
    return Texts{};  // an empty list has no type
  const Texts* texts = std::get_if<Texts>(&attr);
  return texts != nullptr ? std::optional(*texts) : std::nullopt;
}
std::optional<std::vector<double>> from_attr(const Attr& attr, const std::vector<double>&) {
  if (const auto* one = std::get_if<double>(&attr)) return std::vector{*one};
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&attr))
    return std::vector<double>(integers->begin(), integers->end());
  const auto* reals = std::get_if<std::vector<double>>(&attr);
  return reals != nullptr ? std::optional(*reals) : std::nullopt;
}

template <class T, class To>
std::string take(std::string_view key, const Attr& attr, const T& form, To& to) {
  std::optional<T> value = from_attr(attr, form);
  if (!value) return fmt::format("setting `{}` must be {}", key, form_of(form));
  to = std::move(*value);
  return "";
}

// Calls f(key, setting) for all of them.
template <class S, class F>
void each_setting(S& settings, const F& f) {
#define GACC_SETTING(table, name, type, fallback) f(std::string_view(#table "." #name), settings.table.name);
#include "ir/settings.def"
}
template <class R, class F>
void each_result(R& results, const F& f) {
#define GACC_RESULT(name, key, type, fallback) f(std::string_view(key), results.name);
#include "ir/settings.def"
}

constexpr std::string_view kInputs = "inputs.", kGroups = "optimizer.groups.", kLoads = "load.parameters.",
                           kAdapters = "adapters.";
constexpr int64_t kMostNumbered = 100000;

bool is_of_type(std::string_view key) {
  return key.starts_with("optimizer.") || key.starts_with("schedule.") || key.starts_with("loss.");
}

// inputs.NAME.FIELD; a name has no dots.
std::string set_input(Settings& settings, std::string_view key, const Attr& value) {
  const size_t dot = std::min(key.find('.', kInputs.size()), key.size());
  const std::string_view name = key.substr(kInputs.size(), dot - kInputs.size());
  const std::string_view field = key.substr(std::min(dot + 1, key.size()));
  InputSettings& input = settings.inputs[std::string(name)];
  if (field == "range") return take(key, value, int64_t{}, input.range);
  if (field == "ignore_index") return take(key, value, int64_t{}, input.ignore_index);
  if (field == "normalize.mean") return take(key, value, std::vector<double>{}, input.mean);
  if (field == "normalize.std") return take(key, value, std::vector<double>{}, input.std);
  if (field != "normalize") return fmt::format("an input has no setting `{}`", field);
  input.normalize_data = value == Attr(std::string("data"));
  return input.normalize_data ? "" : fmt::format("setting `{}` can only be \"data\"", key);
}

// PREFIX.N.FIELD: the entry of that number, made where it is missing, and its field; null when the key names
// none.
template <class T>
T* numbered(std::vector<T>& list, std::string_view prefix, std::string_view key, std::string_view& field) {
  const std::string_view rest = key.substr(prefix.size());
  int64_t number = 0;
  const auto [end, bad] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (bad != std::errc{} || number < 0 || number >= kMostNumbered || end == rest.data() + rest.size())
    return nullptr;
  if (static_cast<size_t>(number) >= list.size()) list.resize(static_cast<size_t>(number) + 1);
  field = rest.substr(static_cast<size_t>(end - rest.data()));
  return &list[static_cast<size_t>(number)];
}

// optimizer.groups.N.FIELD
std::string set_group(Settings& settings, std::string_view key, const Attr& value) {
  std::string_view field;
  GroupSettings* group = numbered(settings.groups, kGroups, key, field);
  if (group == nullptr) return fmt::format("`{}` does not name a group; the first is {}0", key, kGroups);
  if (field == ".match") return take(key, value, Texts{}, group->match);
  if (field == ".weight_decay") return take(key, value, double{}, group->weight_decay);
  if (field == ".lr_factor") return take(key, value, double{}, group->lr_factor);
  return fmt::format("a group has no setting `{}`", field);
}

// load.parameters.N.FIELD
std::string set_load(Settings& settings, std::string_view key, const Attr& value) {
  std::string_view field;
  LoadSettings* load = numbered(settings.loads, kLoads, key, field);
  if (load == nullptr) return fmt::format("`{}` does not name a parameter; the first is {}0", key, kLoads);
  if (field == ".name") return take(key, value, std::string{}, load->parameter);
  if (field == ".tensors") return take(key, value, Texts{}, load->tensors);
  if (field == ".transpose") return take(key, value, bool{}, load->transpose);
  if (field == ".parts") return take(key, value, std::vector<int64_t>{}, load->parts);
  return fmt::format("a parameter that is loaded has no setting `{}`", field);
}

// adapters.N.FIELD
std::string set_adapter(Settings& settings, std::string_view key, const Attr& value) {
  std::string_view field;
  AdapterSettings* adapter = numbered(settings.adapters, kAdapters, key, field);
  if (adapter == nullptr)
    return fmt::format("`{}` does not name an adapter; the first is {}0", key, kAdapters);
  if (field == ".name") return take(key, value, std::string{}, adapter->name);
  if (field == ".weight") return take(key, value, std::string{}, adapter->weight);
  if (field == ".begin") return take(key, value, int64_t{}, adapter->begin);
  if (field == ".alpha") return take(key, value, double{}, adapter->alpha);
  return fmt::format("an adapter has no setting `{}`", field);
}

}  // namespace

double Settings::real(std::string_view key, double fallback) const {
  const auto found = of_types.find(key);
  return found == of_types.end() ? fallback : from_attr(found->second, fallback).value_or(fallback);
}

const InputSettings& Settings::input(std::string_view name) const {
  static const InputSettings nothing;
  const auto found = inputs.find(name);
  return found == inputs.end() ? nothing : found->second;
}

std::string set(Settings& settings, Results& results, std::string_view key, const Attr& value) {
  std::optional<std::string> problem;
  std::vector<std::string_view> known;
  const auto one = [&](std::string_view name, auto& setting) {
    known.push_back(name);
    if (name == key) problem = take(key, value, *setting, setting);
  };
  each_setting(settings, one);
  each_result(results, one);
  if (problem) return *problem;
  if (key.starts_with(kInputs)) return set_input(settings, key, value);
  if (key.starts_with(kGroups)) return set_group(settings, key, value);
  if (key.starts_with(kLoads)) return set_load(settings, key, value);
  if (key.starts_with(kAdapters)) return set_adapter(settings, key, value);
  if (!is_of_type(key)) return fmt::format("there is no setting `{}`{}", key, did_you_mean(key, known));
  settings.of_types.insert_or_assign(std::string(key), value);
  return "";
}

Attrs given(const Settings& settings, const Results& results) {
  Attrs all = settings.of_types;
  const auto one = [&](std::string_view key, const auto& setting) {
    if (setting.given()) all.emplace(key, to_attr(*setting));
  };
  each_setting(settings, one);
  each_result(results, one);
  for (const auto& [name, input] : settings.inputs) {
    const std::string path = fmt::format("{}{}.", kInputs, name);
    if (input.range) all.emplace(path + "range", *input.range);
    if (input.ignore_index) all.emplace(path + "ignore_index", *input.ignore_index);
    if (input.normalize_data) all.emplace(path + "normalize", "data");
    if (!input.mean.empty()) all.emplace(path + "normalize.mean", input.mean);
    if (!input.std.empty()) all.emplace(path + "normalize.std", input.std);
  }
  for (size_t g = 0; g < settings.groups.size(); ++g) {
    const GroupSettings& group = settings.groups[g];
    const std::string path = fmt::format("{}{}.", kGroups, g);
    if (!group.match.empty()) all.emplace(path + "match", group.match);
    if (group.weight_decay) all.emplace(path + "weight_decay", *group.weight_decay);
    if (group.lr_factor) all.emplace(path + "lr_factor", *group.lr_factor);
  }
  for (size_t l = 0; l < settings.loads.size(); ++l) {
    const LoadSettings& load = settings.loads[l];
    const std::string path = fmt::format("{}{}.", kLoads, l);
    all.emplace(path + "name", load.parameter);
    if (!load.tensors.empty()) all.emplace(path + "tensors", load.tensors);
    if (load.transpose) all.emplace(path + "transpose", true);
    if (!load.parts.empty()) all.emplace(path + "parts", load.parts);
  }
  for (size_t a = 0; a < settings.adapters.size(); ++a) {
    const AdapterSettings& adapter = settings.adapters[a];
    const std::string path = fmt::format("{}{}.", kAdapters, a);
    all.emplace(path + "name", adapter.name);
    all.emplace(path + "weight", adapter.weight);
    all.emplace(path + "begin", adapter.begin);
    all.emplace(path + "alpha", adapter.alpha);
  }
  return all;
}

}  // namespace gacc::ir
