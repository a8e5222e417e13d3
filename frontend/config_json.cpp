#include "frontend/config_json.h"

#include <fmt/ranges.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace gacc::frontend {

namespace {

using Json = nlohmann::ordered_json;

ConfigValue convert(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_number_float() ||
      (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}))
    return {json.get<double>()};
  if (json.is_number()) return {json.get<int64_t>()};
  if (json.is_object()) return {json.dump()};  // within a list
  std::vector<ConfigValue> list;
  for (const Json& item : json) list.push_back(convert(item));
  return {std::move(list)};
}

void add(const std::string& prefix, const Json& object, ConfigValues& values) {
  for (const auto& [key, json] : object.items()) {
    if (json.is_object() && !json.empty())
      add(prefix + key + ".", json, values);
    else
      values.emplace_back(prefix + key, json.is_object() ? ConfigValue() : convert(json));
  }
}

}  // namespace

std::optional<double> ConfigValue::number() const {
  if (const int64_t* integer = get<int64_t>()) return static_cast<double>(*integer);
  if (const double* real = get<double>()) return *real;
  return std::nullopt;
}

bool ConfigValue::operator==(const ConfigValue& other) const {
  if (number() && other.number()) return number() == other.number();
  return data == other.data;
}

std::string value_text(const ConfigValue& value) {
  struct Text {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t integer) const { return fmt::to_string(integer); }
    std::string operator()(double real) const { return fmt::format("{}", real); }
    std::string operator()(const std::string& text) const { return Json(text).dump(); }
    std::string operator()(const std::vector<ConfigValue>& list) const {
      std::vector<std::string> items;
      for (const ConfigValue& item : list) items.push_back(value_text(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
  };
  return std::visit(Text{}, value.data);
}

std::string shown_text(const ConfigValue& value) {
  std::string text = value_text(value);
  size_t end = 80;
  if (text.size() <= end) return text;
  while ((text[end] & 0xC0) == 0x80) --end;  // a character of UTF-8 stays whole
  return text.substr(0, end) + "...";
}

Node to_node(const ConfigValue& value, const Location& at) {
  using enum Node::Form;
  constexpr Node::Form forms[] = {table, flag, integer, real, text, list};  // in the order of the variant
  Node node{.form = forms[value.data.index()], .at = at, .entries = {}};
  if (const bool* one = value.get<bool>()) node.flag = *one;
  if (const int64_t* one = value.get<int64_t>()) node.integer = *one;
  if (const double* one = value.get<double>()) node.real = *one;
  if (const std::string* one = value.get<std::string>()) node.text = *one;
  if (const auto* all = value.get<std::vector<ConfigValue>>())
    for (const ConfigValue& item : *all) node.items.push_back(to_node(item, at));
  return node;
}

ConfigValue to_value(const Node& node) {
  switch (node.form) {
    case Node::Form::flag:
      return {node.flag};
    case Node::Form::integer:
      return {node.integer};
    case Node::Form::real:
      return {node.real};
    case Node::Form::list: {
      std::vector<ConfigValue> list;
      for (const Node& item : node.items) list.push_back(to_value(item));
      return {std::move(list)};
    }
    default:
      return {node.text};
  }
}

ConfigValue to_value(const ir::Attr& value) {
  const auto made = []<class T>(const T& data) -> ConfigValue {
    if constexpr (std::is_constructible_v<decltype(ConfigValue::data), T>) {
      return {data};
    } else {
      std::vector<ConfigValue> items;
      for (const auto& item : data) items.push_back({item});
      return {std::move(items)};
    }
  };
  return std::visit(made, value);
}

std::optional<ConfigValues> parse_config(std::string_view text, std::string& problem) {
  try {
    const Json json = Json::parse(text);
    ConfigValues values;
    if (json.is_object()) add("", json, values);
    if (!json.is_object()) problem = "it is no JSON object";
    return json.is_object() ? std::optional(std::move(values)) : std::nullopt;
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line ..."
    problem = fmt::format("it is no JSON: {}", what.substr(std::min(what.find("] ") + 2, what.size())));
  }
  return std::nullopt;
}

}  // namespace gacc::frontend
