#include "ir/schema/settings.h"

#include <fmt/format.h>

#include <charconv>

#include "ir/diag.h"

namespace gacc::ir {

namespace {

// The form that an Attr must have for a setting of the type, and the setting's value of it.
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

template <class T>
T form_of_field(const T&) {
  return {};
}
template <class T>
T form_of_field(const std::optional<T>&) {
  return {};
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
#include "ir/schema/settings.def"
}
template <class R, class F>
void each_result(R& results, const F& f) {
#define GACC_RESULT(name, key, type, fallback) f(std::string_view(key), results.name);
#include "ir/schema/settings.def"
}

constexpr std::string_view kInputs = "inputs.";
constexpr int64_t kMostNumbered = 100000;

bool is_of_type(std::string_view key) {
  return key.starts_with("optimizer.") || key.starts_with("schedule.") || key.starts_with("loss.");
}

// Entries of lists, whose keys are PREFIX + N + "." + FIELD: the fields, and what the list is called.
struct ListNames {
  std::string_view prefix, entry, with_field;
};
template <class Group, class F>
void each_list(Group& settings, const F& f) {
  f(settings.groups, ListNames{"optimizer.groups.", "a group", "a group"});
  f(settings.loads, ListNames{"load.parameters.", "a parameter", "a parameter that is loaded"});
  f(settings.ggufs, ListNames{"gguf.parameters.", "a parameter", "a parameter that is loaded"});
  f(settings.adapters, ListNames{"adapters.", "an adapter", "an adapter"});
}
template <class Entry, class F>
void each_field(Entry& entry, const F& f) {
  if constexpr (std::is_same_v<std::remove_const_t<Entry>, InputSettings>) {
    f("range", entry.range);
    f("ignore_index", entry.ignore_index);
    f("normalize.mean", entry.mean);
    f("normalize.std", entry.std);
    f("values", entry.values);
  } else if constexpr (std::is_same_v<std::remove_const_t<Entry>, ColumnSettings>) {
    f("name", entry.name);
    f("values", entry.values);
  } else if constexpr (std::is_same_v<std::remove_const_t<Entry>, GroupSettings>) {
    f("match", entry.match);
    f("weight_decay", entry.weight_decay);
    f("lr_factor", entry.lr_factor);
  } else if constexpr (std::is_same_v<std::remove_const_t<Entry>, LoadSettings>) {
    f("name", entry.parameter);
    f("tensors", entry.tensors);
    f("transpose", entry.transpose);
    f("parts", entry.parts);
    f("interleave", entry.interleave);
    f("shift", entry.shift);
  } else {
    f("name", entry.name);
    f("weight", entry.weight);
    f("begin", entry.begin);
    f("alpha", entry.alpha);
  }
}

// Sets the field of that name; `found` is what a message calls it.
template <class Entry>
std::string set_field(Entry& entry, std::string_view name, std::string_view key, const Attr& value,
                      std::string_view what, std::string_view found) {
  std::string problem = fmt::format("{} has no setting `{}`", what, found);
  each_field(entry, [&](std::string_view field, auto& to) {
    if (field == name) problem = take(key, value, form_of_field(to), to);
  });
  return problem;
}

// Sets a field of the entry of that number, which is made where it is missing.
template <class Entry>
std::string set_entry(std::vector<Entry>& list, const ListNames& names, std::string_view key,
                      const Attr& value) {
  const std::string_view rest = key.substr(names.prefix.size());
  int64_t number = 0;
  const auto [end, bad] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (bad != std::errc{} || number < 0 || number >= kMostNumbered || end == rest.data() + rest.size())
    return fmt::format("`{}` does not name {}; the first is {}0", key, names.entry, names.prefix);
  if (static_cast<size_t>(number) >= list.size()) list.resize(static_cast<size_t>(number) + 1);
  const std::string_view field = rest.substr(static_cast<size_t>(end - rest.data()));
  const bool dot = field.starts_with('.');
  return set_field(list[number], dot ? field.substr(1) : "", key, value, names.with_field, field);
}

// Returns the names of inputs.NAME.columns.
ListNames columns_of(std::string_view prefix) { return {prefix, "a column", "a column"}; }

// inputs.NAME.FIELD; a name has no dots.
std::string set_input(Settings& settings, std::string_view key, const Attr& value) {
  const size_t dot = std::min(key.find('.', kInputs.size()), key.size());
  const std::string_view name = key.substr(kInputs.size(), dot - kInputs.size());
  const std::string_view field = key.substr(std::min(dot + 1, key.size()));
  InputSettings& input = settings.inputs[std::string(name)];
  constexpr std::string_view kColumns = "columns.";
  if (field.starts_with(kColumns))
    return set_entry(input.columns, columns_of(key.substr(0, dot + 1 + kColumns.size())), key, value);
  if (field != "normalize") return set_field(input, field, key, value, "an input", field);
  input.normalize_data = value == Attr(std::string("data"));
  return input.normalize_data ? "" : fmt::format("setting `{}` can only be \"data\"", key);
}

// Returns a field as it is written; nothing for a field that was not given.
template <class T>
std::optional<Attr> written(const T& field) {
  return Attr(field);
}
template <class T>
std::optional<Attr> written(const std::optional<T>& field) {
  return field ? std::optional<Attr>(*field) : std::nullopt;
}
template <class T>
std::optional<Attr> written(const std::vector<T>& field) {
  return field.empty() ? std::nullopt : std::optional<Attr>(field);
}
std::optional<Attr> written(const bool& field) { return field ? std::optional<Attr>(true) : std::nullopt; }

}  // namespace

const Attr* Settings::of_type(std::string_view key) const {
  const auto found = of_types.find(key);
  return found == of_types.end() ? nullptr : &found->second;
}

double Settings::real(std::string_view key, double fallback) const {
  const Attr* found = of_type(key);
  return found == nullptr ? fallback : from_attr(*found, fallback).value_or(fallback);
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
  each_list(settings, [&](auto& list, const ListNames& names) {
    if (key.starts_with(names.prefix)) problem = set_entry(list, names, key, value);
  });
  if (problem) return *problem;
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
  const auto emplace = [&](const std::string& key, const auto& value) {
    if (const std::optional<Attr> attr = written(value)) all.emplace(key, *attr);
  };
  const auto emplace_list = [&](const auto& list, const ListNames& names) {
    for (size_t i = 0; i < list.size(); ++i)
      each_field(list[i], [&](std::string_view field, const auto& value) {
        emplace(fmt::format("{}{}.{}", names.prefix, i, field), value);
      });
  };
  for (const auto& [name, input] : settings.inputs) {
    const std::string path = fmt::format("{}{}.", kInputs, name);
    if (input.normalize_data) all.emplace(path + "normalize", "data");
    each_field(input,
               [&](std::string_view field, const auto& value) { emplace(path + std::string(field), value); });
    emplace_list(input.columns, columns_of(path + "columns."));
  }
  each_list(settings, emplace_list);
  return all;
}

}  // namespace gacc::ir
