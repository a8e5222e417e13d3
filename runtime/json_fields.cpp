#include "runtime/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gacc {

using nlohmann::json;

namespace {

// A value of the file for a message: on one line, in ASCII, and not too long.
std::string shown(const json& value) {
  const std::string result = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return result.size() > 60 ? result.substr(0, 60) + "..." : result;
}

}  // namespace

JsonFields::JsonFields(const json& object, std::string where, Status& status)
    : object_(object), where_(std::move(where)), status_(status) {
  if (!object.is_object()) wrong("", object, "an object");
}

bool JsonFields::has(const char* key) const {
  return status_.ok() && object_.is_object() && object_.contains(key);
}

void JsonFields::read(const char* key, std::string& to) {
  if (const json* value = find(key)) {
    if (value->is_string())
      to = value->get<std::string>();
    else
      wrong(key, *value, "a string");
  }
}
void JsonFields::read_name(const char* key, std::string& to) {
  read(key, to);
  auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (status_ && (to.empty() || std::any_of(to.begin(), to.end(), control)))
    fail(fmt::format("{}{} is {}; expected a name", where_, key, shown(to)));
}
void JsonFields::read(const char* key, bool& to) {
  if (const json* value = find(key)) {
    if (value->is_boolean())
      to = value->get<bool>();
    else
      wrong(key, *value, "true or false");
  }
}
void JsonFields::read(const char* key, int64_t& to, int64_t low, int64_t high) {
  if (const json* value = find(key)) integer(key, *value, to, low, high);
}
void JsonFields::read(const char* key, double& to) {
  if (const json* value = find(key)) real(key, *value, to);
}
void JsonFields::read(const char* key, std::vector<std::string>& to) {
  each(key, [&](const json& item, const std::string& name) {
    if (item.is_string())
      to.push_back(item.get<std::string>());
    else
      wrong(name, item, "a string");
  });
}
void JsonFields::read(const char* key, std::vector<double>& to) {
  each(key, [&](const json& item, const std::string& name) { real(name, item, to.emplace_back()); });
}
void JsonFields::read_shape(const char* key, std::vector<int64_t>& to, int64_t& elements) {
  elements = 1;
  each(key, [&](const json& item, const std::string& name) {
    int64_t extent = 1;
    integer(name, item, extent, 1, kMost);
    if (!status_) return;
    to.push_back(extent);
    if (to.size() > kMaxRank || extent > kMost / elements)
      fail(fmt::format("{}{} is too large a shape", where_, key));
    else
      elements *= extent;
  });
}
void JsonFields::each(const char* key, const Item& item) {
  const json* value = find(key);
  if (!value) return;
  if (!value->is_array()) return wrong(key, *value, "an array");
  for (size_t i = 0; i < value->size() && status_; ++i) item((*value)[i], fmt::format("{}[{}]", key, i));
}
void JsonFields::read(const char* key, std::string& to, std::span<const std::string_view> words) {
  read(key, to);
  if (status_ && std::find(words.begin(), words.end(), to) == words.end())
    fail(fmt::format("{}{} is {}; expected {}", where_, key, shown(to), fmt::join(words, ", ")));
}

void JsonFields::fail(std::string text) {
  if (status_) status_ = Status::error(std::move(text));
}

const json* JsonFields::find(const char* key) {
  if (!status_) return nullptr;
  auto found = object_.find(key);
  if (found != object_.end()) return &*found;
  fail(fmt::format("{}{} is missing", where_, key));
  return nullptr;
}
void JsonFields::integer(const std::string& name, const json& value, int64_t& to, int64_t low, int64_t high) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= low && number <= high)
    to = number;
  else
    wrong(name, value, fmt::format("an integer from {} to {}", low, high));
}
void JsonFields::real(const std::string& name, const json& value, double& to) {
  if (value.is_number() && std::isfinite(value.get<double>()))
    to = value.get<double>();
  else
    wrong(name, value, "a number");
}
void JsonFields::wrong(const std::string& name, const json& value, std::string_view expected) {
  std::string found = value.is_structured() ? value.type_name() : shown(value);
  fail(fmt::format("{}{} is {}; expected {}", where_, name, found, expected));
}

}  // namespace gacc
