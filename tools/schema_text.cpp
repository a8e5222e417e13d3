#include "tools/schema_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "frontend/schema.h"

namespace gacc {

namespace {

using frontend::all_tables;
using frontend::words_of;

// Returns the values that a key takes: "integer, at least 1, or "auto"".
std::string value_text(const Key& key) {
  std::vector<std::string> words;
  for (const std::string_view word : words_of(key)) words.push_back(fmt::format("\"{}\"", word));
  std::string text(form_text(key.form));
  if (key.most > 0) text += fmt::format(" ({}{})", key.form == Form::reals ? "" : "at most ", key.most);
  if (key.form == Form::reals && key.table != nullptr) text += ", or a table of them";
  if (const std::string range = key.range.text(); !range.empty()) text += ", " + range;
  if (!words.empty())
    text += text.empty() ? "" : key.form == Form::words || key.form == Form::metrics ? " " : ", or ";
  return fmt::format("{}{}", text, fmt::join(words, ", "));
}

struct DefaultText {
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(int64_t integer) const { return fmt::format("{}", integer); }
  std::string operator()(double real) const { return number_text(real); }
  std::string operator()(const std::string& word) const { return fmt::format("\"{}\"", word); }
  std::string operator()(const std::vector<double>& reals) const {
    return fmt::format("[{}]", fmt::join(reals, ", "));
  }
  template <class List>
  std::string operator()(const List&) const {
    return "";
  }
};

std::string default_text(const Key& key) {
  if (key.fallback.required) return "required";
  return key.fallback.value ? std::visit(DefaultText{}, *key.fallback.value) : "";
}

// The table as it is written: "[train]", "[[layers]]".
std::string heading(const Table& table) {
  return &table == &frontend::tables::layer ? "[[layers]]" : table.title();
}

// A model file's lines for a type or a table.
std::string example(const Table& table, const TypeSchema* type) {
  if (type == nullptr) return fmt::format("{}\n{}\n", heading(table), table.example);
  std::string lines = fmt::format("{}\ntype = \"{}\"\n", heading(table), type->name);
  if (!type->example.empty()) lines += fmt::format("{}\n", type->example);
  return lines;
}

// "|" ends a cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) (out += c == '|' ? "\\" : "") += c;
  return out;
}

std::string key_table(const std::vector<Key>& keys) {
  if (keys.empty()) return "";
  std::string text = "| key | value | default | |\n| --- | --- | --- | --- |\n";
  for (const Key& key : keys)
    text += fmt::format("| `{}` | {} | {} | {} |\n", key.name, cell(value_text(key)), default_text(key),
                        cell(key.says));
  return text + "\n";
}

std::string key_lines(const std::vector<Key>& keys, size_t indent) {
  std::string text;
  for (const Key& key : keys) {
    const std::string fallback = default_text(key);
    text += fmt::format("{:{}}{:<17}{}{}\n{:{}}{:<17}{}\n", "", indent, key.name, value_text(key),
                        fallback.empty()        ? ""
                        : key.fallback.required ? "; required"
                                                : "; default " + fallback,
                        "", indent, "", key.says);
  }
  return text;
}

nlohmann::ordered_json keys_json(const std::vector<Key>& keys) {
  nlohmann::ordered_json list = nlohmann::json::array();
  for (const Key& key : keys) {
    nlohmann::ordered_json json = {
        {"key", key.name}, {"form", form_text(key.form)}, {"required", key.fallback.required}};
    if (key.fallback.value)
      std::visit([&](const auto& value) { json["default"] = value; }, *key.fallback.value);
    if (const std::string range = key.range.text(); !range.empty()) json["range"] = range;
    if (const auto words = words_of(key); !words.empty()) json["words"] = words;
    json["says"] = key.says;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace

std::string schema_text() {
  std::string text;
  for (const Table* table : all_tables()) {
    text += fmt::format("{}{}  {}\n", text.empty() ? "" : "\n", heading(*table), table->says);
    text += key_lines(table->keys, 2);
    for (const TypeSchema* type : table->types) {
      text += fmt::format("  type = \"{}\"  {}\n", type->name, type->says);
      text += key_lines(type->keys, 4);
    }
  }
  return text;
}

std::string schema_json() {
  nlohmann::ordered_json tables = nlohmann::json::array();
  for (const Table* table : all_tables()) {
    nlohmann::ordered_json json = {{"table", heading(*table)},
                                   {"path", table->path},
                                   {"says", table->says},
                                   {"keys", keys_json(table->keys)}};
    for (const TypeSchema* type : table->types)
      json["types"].push_back({{"type", type->name},
                               {"says", type->says},
                               {"keys", keys_json(type->keys)},
                               {"example", example(*table, type)}});
    tables.push_back(std::move(json));
  }
  return tables.dump(2) + "\n";
}

std::string schema_markdown() {
  std::string text =
      "# The model file\n\n"
      "Printed by `gaccc --schema --markdown`; do not edit. What a model file may say: every table, its "
      "keys, their defaults, and a minimal example of each. [training.md](training.md) and "
      "[memory.md](memory.md) say how they work together.\n\n";
  for (const Table* table : all_tables()) {
    const bool root = table == &frontend::tables::file;
    text += root ? fmt::format("{}\n\n", table->says)
                 : fmt::format("## {}\n\n{}\n\n", heading(*table), table->says);
    text += key_table(table->keys);
    if (!table->example.empty()) text += fmt::format("```toml\n{}```\n\n", example(*table, nullptr));
    for (const TypeSchema* type : table->types) {
      text += fmt::format("### `{}`\n\n{}\n\n", type->name, cell(type->says));
      text += key_table(type->keys);
      text += fmt::format("```toml\n{}```\n\n", example(*table, type));
    }
  }
  text.pop_back();
  return text;
}

}  // namespace gacc
