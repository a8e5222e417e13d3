#include "frontend/toml_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "frontend/config_json.h"
#include "ir/text/text.h"

namespace gacc::frontend {

namespace {

constexpr size_t kColumns = 100;  // of a list in one line

bool is_list_of_tables(const Node& node) {
  return node.is_list() && !node.items.empty() && node.items[0].is_table();
}

std::string key_text(const std::string& key) {
  const bool bare = !key.empty() && std::ranges::all_of(key, [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
  });
  return bare ? key : value_text({key});
}

std::string in_line(const Node& node) {
  std::vector<std::string> parts;
  switch (node.form) {
    case Node::Form::text:
      return value_text({node.text});
    case Node::Form::integer:
      return fmt::to_string(node.integer);
    case Node::Form::real:
      return ir::attr_text(node.real);  // as TOML has it, inf and nan, too
    case Node::Form::flag:
      return node.flag ? "true" : "false";
    case Node::Form::list: {
      for (const Node& item : node.items) parts.push_back(in_line(item));
      const std::string line = fmt::format("[{}]", fmt::join(parts, ", "));
      return line.size() <= kColumns ? line : fmt::format("[\n  {},\n]", fmt::join(parts, ",\n  "));
    }
    default:
      for (const Entry& entry : node.entries)
        parts.push_back(fmt::format("{} = {}", key_text(entry.key), in_line(entry.value)));
      return fmt::format("{{ {} }}", fmt::join(parts, ", "));
  }
}

void collect_notes(const Node& node, std::vector<std::string>& notes) {
  for (const std::string& note : node.notes)
    if (std::ranges::count(notes, note) == 0) notes.push_back(note);
  for (const Node& item : node.items) collect_notes(item, notes);
  for (const Entry& entry : node.entries) collect_notes(entry.value, notes);
}

// `within`: the table is an entry of a list.
void print(const Node& table, const std::string& path, bool within, std::string& out) {
  const auto is_block = [&](const Node& node) {
    return is_list_of_tables(node) || (node.is_table() && !within);
  };
  for (const Entry& entry : table.entries) {
    if (is_block(entry.value)) continue;
    std::vector<std::string> notes;
    collect_notes(entry.value, notes);
    out += fmt::format("{} = {}{}{}\n", key_text(entry.key), in_line(entry.value),
                       notes.empty() ? "" : "   # ", fmt::join(notes, ", "));
  }
  for (const Entry& entry : table.entries) {
    if (!is_block(entry.value)) continue;
    const std::string name = (path.empty() ? "" : path + ".") + key_text(entry.key);
    const bool list = entry.value.is_list();
    const std::span<const Node> tables =
        list ? std::span<const Node>(entry.value.items) : std::span(&entry.value, 1);
    for (const Node& each : tables) {
      const bool only_tables =
          !list && !each.entries.empty() &&
          std::ranges::all_of(each.entries, [](const Entry& inner) { return inner.value.is_table(); });
      if (!only_tables && !out.empty() && !within) out += "\n";
      if (!only_tables) out += fmt::format(list ? fmt::runtime("[[{}]]\n") : fmt::runtime("[{}]\n"), name);
      print(each, name, within || list, out);
    }
  }
}

}  // namespace

std::string toml_text(const Node& root) {
  std::string text;
  print(root, "", false, text);
  return text;
}

}  // namespace gacc::frontend
