// TOML as a tree of our own, with a source location on every key and value, in file order. The only door to
// the TOML library is toml_tree.cpp.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/diag.h"

namespace gacc {
struct Override;
}

namespace gacc::frontend {

struct Entry;

struct Node {
  enum class Form : uint8_t { text, integer, real, flag, date, list, table };
  Form form = Form::table;
  Location at{};
  std::string text{};  // Form::text
  int64_t integer = 0;
  double real = 0;
  bool flag = false;
  std::vector<Node> items{};         // Form::list
  std::vector<Entry> entries;        // Form::table, in file order
  std::vector<std::string> notes{};  // what is printed behind it (toml_text.h)

  bool is_table() const { return form == Form::table; }
  bool is_list() const { return form == Form::list; }
  double number() const { return form == Form::integer ? static_cast<double>(integer) : real; }
  const Node* find(std::string_view key) const;
  Node* find(std::string_view key);
};

struct Entry {
  std::string key;
  Location key_at;
  Node value;
};

std::string_view form_text(Node::Form form);  // "a string", "an integer", ...
// Returns the header of a table, or of a list of tables: the right spelling where the other one was written.
std::string header_text(std::string_view name, bool list);

// The whole file, or nothing and one `syntax` report.
std::optional<Node> parse_toml(std::string_view text, Diag& diag);

// The right side of an override: TOML, or a bare word taken as a string. Every node gets the place `at`. Nothing
// and a report when it is neither.
std::optional<Node> parse_value(const Override& override, const Location& at, Diag& diag);

// overrides.cpp. Applies overrides in order, before the tree is read, so that they are checked like the file;
// the last one of a key wins. What they write carries the place `--set KEY=VALUE`.
void apply_overrides(Node& root, const std::vector<Override>& overrides, Diag& diag);

// Drops the keys that an optimizer or a schedule has from elsewhere than overrides, where these give it another type:
// those that the type does not know, or `all` that are of types. Returns which keys stay and which do not: a sentence
// for each table.
std::vector<std::string> drop_keys_of_types(Node& root, const std::vector<Override>& overrides, bool all);

// The names of a list of layer tables, defaults (TYPE_N, N counting the unnamed layers of a type) included;
// "" for what is no layer.
std::vector<std::string> layer_names(const Node& layers);

}  // namespace gacc::frontend
