// `--set KEY=VALUE`: walks dotted keys through tables and, by name, through lists of layers.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "frontend/config_json.h"
#include "frontend/frontend.h"
#include "frontend/schema.h"
#include "frontend/toml_tree.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {

std::vector<std::string> layer_names(const Node& layers) {
  std::vector<std::string> names;
  std::map<std::string, int, std::less<>> unnamed;
  for (const Node& layer : layers.items) {
    const Node* name = layer.find("name");
    const Node* type = layer.find("type");
    if (name != nullptr)
      names.push_back(name->text);
    else if (type != nullptr && !type->text.empty())
      names.push_back(fmt::format("{}_{}", type->text, unnamed[type->text]++));
    else
      names.emplace_back();
  }
  return names;
}

namespace {

constexpr size_t kMaxParts = 40;  // of a dotted key, as in the file: it bounds the depth of the tree

std::vector<std::string> parts_of(std::string_view key) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    parts.emplace_back(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Node* layer_named(Node& layers, std::string_view name) {
  const std::vector<std::string> names = layer_names(layers);
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return &layers.items[i];
  return nullptr;
}

Node& entry(Node& table, const std::string& key, const Location& at) {
  if (Node* found = table.find(key)) return *found;
  table.entries.push_back({key, at, {.at = at, .entries = {}}});
  return table.entries.back().value;
}

void apply(Node& root, const Override& override, Diag& diag) {
  const Location at{.origin = fmt::format("--set {}={}", override.key, override.value)};
  std::optional<Node> value = parse_value(override, at, diag);
  if (!value) return;
  Node* node = &root;
  const std::vector<std::string> parts = parts_of(override.key);
  if (std::ranges::count(parts, std::string()) > 0 || parts.size() > kMaxParts) {
    diag.error(Kind::syntax, at, "`{}` is not a dotted path such as train.accumulate", override.key);
    return;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    const bool last = i + 1 == parts.size();
    if (node->is_list() && parts.front() != "layers") {  // [[optimizer.groups]]: by number
      const std::string list =
          fmt::format("{}", fmt::join(parts.begin(), parts.begin() + static_cast<int64_t>(i), "."));
      size_t number = 0;
      const auto read = std::from_chars(part.data(), part.data() + part.size(), number);
      if (read.ec != std::errc() || read.ptr != part.data() + part.size() || number >= node->items.size()) {
        diag.error(Kind::unknown_name, at, "`{}` has {}, which go by number from 0; there is no `{}`", list,
                   ir::counted(static_cast<int64_t>(node->items.size()), "element"), part);
        return;
      }
      node = &node->items[number];
      continue;
    }
    // Inside a block its layers may be named directly: layers.block.fc1 is layers.block.layers.fc1.
    Node* inner = node == &root || last || node->find(part) != nullptr ? nullptr : node->find("layers");
    Node* list = node->is_list() ? node : inner;
    Node* layer = list != nullptr && list->is_list() ? layer_named(*list, part) : nullptr;
    if (node->is_list() && layer == nullptr) {
      const std::vector<std::string> names = layer_names(*node);
      const bool number = part.find_first_not_of("0123456789") == std::string::npos;
      diag.error(Kind::unknown_name, at, "there is no layer `{}`{}", part,
                 number ? fmt::format("; layers go by name: {}", fmt::join(names, ", "))
                        : did_you_mean(part, {names.begin(), names.end()}));
      return;
    }
    if (layer != nullptr && last) {
      diag.error(Kind::syntax, at, "the path ends at layer `{}`; name the key to set", part);
      return;
    }
    if (layer == nullptr && !node->is_table()) {
      diag.error(Kind::unknown_key, at, "`{}` is {}, it has no keys", parts[i - 1], form_text(node->form));
      return;
    }
    node = layer != nullptr ? layer : &entry(*node, part, at);
  }
  *node = std::move(*value);
}

}  // namespace

void apply_overrides(Node& root, const std::vector<Override>& overrides, Diag& diag) {
  for (const Override& override : overrides) apply(root, override, diag);
}

std::vector<std::string> drop_keys_of_types(Node& root, const std::vector<Override>& overrides, bool all) {
  std::vector<std::string> told;
  for (const Table* table : {&tables::optimizer, &tables::schedule}) {
    const auto given = [&](std::string_view key) {
      return std::ranges::find(overrides, fmt::format("{}.{}", table->path, key), &Override::key) !=
             overrides.end();
    };
    Node* node = root.find(table->path);
    if (node == nullptr || !given("type")) continue;
    const auto type = std::ranges::find(table->types, node->find("type")->text, &TypeSchema::name);
    const auto known = [&](std::string_view key) {
      return !all && type != table->types.end() && find_key((*type)->keys, key) != nullptr;
    };
    std::vector<std::string> kept, dropped;
    std::erase_if(node->entries, [&](const Entry& entry) {
      const bool share = !all && entry.key == "warmup" && entry.value.form == Node::Form::text;  // of a total
      const bool stays = share ? known("total") : known(entry.key) || find_key(table->keys, entry.key);
      if (given(entry.key)) return false;
      if (stays)
        kept.push_back(fmt::format("{} = {}", entry.key, value_text(to_value(entry.value))));
      else
        dropped.push_back(entry.key);
      return !stays;
    });
    std::string what = kept.empty() ? "" : fmt::format("keeps {}", fmt::join(kept, ", "));
    if (!dropped.empty())
      what += fmt::format("{}loses {}", kept.empty() ? "" : " and ", fmt::join(dropped, ", "));
    if (!what.empty()) told.push_back(fmt::format("`{}` of another type {}", table->path, what));
  }
  return told;
}

}  // namespace gacc::frontend
