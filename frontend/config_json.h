// A published model's config.json: its values under dotted names. The only door to the JSON library in the
// frontend is config_json.cpp.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/toml_tree.h"
#include "ir/schema/settings.h"

namespace gacc::frontend {

// A value of config.json or of an expression.
struct ConfigValue {
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, std::vector<ConfigValue>> data = nullptr;
  std::string absent{};  // the name that gave nothing, where an expression asked for one ...
  bool missing = false;  // ... which is not in the file

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(data); }
  template <class T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  // The number, whether it is an integer or not; nothing of other values.
  std::optional<double> number() const;
  bool operator==(const ConfigValue& other) const;
};

std::string value_text(const ConfigValue& value);  // as JSON: "silu" in quotes, null
std::string shown_text(const ConfigValue& value);  // the same for messages: the beginning of a long one
ConfigValue to_value(const Node& node);            // of a node that is no table
ConfigValue to_value(const ir::Attr& value);
// As TOML, of values without nulls; each node has the place `at`.
Node to_node(const ConfigValue& value, const Location& at = {});

// An entry of an object is called OBJECT.KEY. An empty object is null.
using ConfigValues = std::vector<std::pair<std::string, ConfigValue>>;  // in the order of the file

// Reads an object; nothing and the reason in `problem` when the text is none.
std::optional<ConfigValues> parse_config(std::string_view text, std::string& problem);

}  // namespace gacc::frontend
