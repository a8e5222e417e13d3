// The contents of a table of the model file, as data: its keys with form, range, default and meaning, and the
// types it can have, which add keys of their own. The frontend reads tables by these lists, `gaccc --schema`
// prints them, docs/model.md is made of them.
#pragma once
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/module.h"

namespace gacc {

// The numbers a key accepts.
struct Range {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low = -kInfinity, high = kInfinity;
  bool low_open = false, high_open = false;  // the bound itself is excluded

  bool contains(double x) const {
    return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
  }
  std::string text() const;              // "at least 0 and below 1"; "" for any number
  std::string text(double found) const;  // the same as what `found` should be
};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .low_open = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range below_one{.low = 0, .high = 1, .high_open = true};                         // [0, 1)
constexpr Range inner_fraction{.low = 0, .high = 1, .low_open = true, .high_open = true};  // (0, 1)
constexpr Range fraction{.low = 0, .high = 1};                                             // [0, 1]
constexpr Range upper_fraction{.low = 0, .high = 1, .low_open = true};                     // (0, 1]
constexpr double kLargest = 2147483647;              // counts and extents are i32 in kernels
constexpr Range extent{.low = 1, .high = kLargest};  // a size in elements along one axis
constexpr Range count_from_zero{.low = 0, .high = kLargest};
constexpr Range any_number{};

enum class Form : uint8_t {
#define X(name, element, one, list, text) name,
#include "ir/schema/forms.def"
};
std::string_view form_text(Form form);  // "integer"; "" of a form that takes words alone

// The default of a key: a value, nothing, or an error.
struct Default {
  std::optional<ir::Attr> value{};
  bool required = false;

  Default() = default;
  Default(bool flag) : value(flag) {}
  Default(int integer) : value(int64_t{integer}) {}
  Default(double real) : value(real) {}
  Default(const char* text) : value(std::string(text)) {}
  Default(std::vector<double> reals) : value(std::move(reals)) {}
  template <class T>
  Default(const ir::Setting<T>& setting) : value(ir::to_attr(*setting)) {}
};
inline const Default no_default{};
inline const Default required = [] {
  Default must;
  must.required = true;
  return must;
}();

using Words = std::vector<std::string_view>;
struct Table;

struct Key {
  std::string_view name;
  Form form;
  Default fallback;
  std::string_view says;  // one sentence
  Range range = any_number;
  Words words{};
  size_t most = 0;               // elements of a list; 0: any number
  bool implied = false;          // the default is not written into the module
  const Table* table = nullptr;  // what a table, or each of a list, may say; null: its reader knows

  Key or_one_of(Words others) const { return with(&Key::words, std::move(others)); }
  Key unsaid() const { return with(&Key::implied, true); }
  Key of(const Table& inner) const { return with(&Key::table, &inner); }

 private:
  template <class T>
  Key with(T Key::*field, std::type_identity_t<T> value) const {
    Key key = *this;
    key.*field = std::move(value);
    return key;
  }
};

// One of the types that a table can have: its sentence, its keys, and the least that a model file says.
struct TypeSchema {
  std::string_view name;
  std::string_view says;
  std::vector<Key> keys{};
  std::string_view example{};  // lines after `type = "NAME"`
};

struct Table {
  std::string_view name{};  // for messages; "": [PATH]
  std::string_view path;    // "train": of its keys
  std::string_view says;
  std::vector<Key> keys{};  // of all types
  std::vector<const TypeSchema*> types{};
  std::string_view example{};  // of a table without types

  std::string title() const { return name.empty() ? fmt::format("[{}]", path) : std::string(name); }
};

// The schemas of types, such as the optimizers.
template <class T>
std::vector<const TypeSchema*> schemas_of(const std::vector<const T*>& types) {
  std::vector<const TypeSchema*> schemas;
  for (const T* each : types) schemas.push_back(&each->schema);
  return schemas;
}
// The one of the types whose schema it is.
template <class T>
const T& type_with(const std::vector<const T*>& types, const TypeSchema& schema) {
  return **std::ranges::find_if(types, [&](const T* each) { return &each->schema == &schema; });
}

std::string number_text(double value);                               // "0.5", "3"
std::string list_words(const std::vector<std::string_view>& words);  // "a", "b" or "c", in quotes
const Key* find_key(const std::vector<Key>& keys, std::string_view name);

}  // namespace gacc
