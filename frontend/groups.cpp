// [[optimizer.groups]]: what is said of some parameters only, by their names.
#include <fnmatch.h>

#include <algorithm>

#include "frontend/model_file.h"
#include "frontend/schema.h"

namespace gacc::frontend {

namespace {

// `*` crosses dots, and a backslash is itself.
bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

std::vector<Named> read_patterns(TableReader& table) {
  std::vector<Named> out;
  const Node* patterns = table.require("match") ? table.list("match") : nullptr;
  if (patterns == nullptr) return out;
  if (patterns->items.empty())
    table.diag().error(Kind::out_of_range, patterns->at, "`{}` is empty", table.path("match"));
  for (const Node& item : patterns->items)
    if (table.is(item, table.path("match"), Node::Form::text)) out.push_back({item.text, item.at});
  return out;
}

// `lr_factor`, or `lr`, which is a factor of what optimizer.lr says.
double read_factor(TableReader& table, double rate) {
  const auto factor = table.real("lr_factor", at_least(0)), own = table.real("lr", at_least(0));
  if (factor && own) {
    table.diag().error(Kind::conflict, table.at("lr"), "a group has `lr` or `lr_factor`, not both");
  } else if (own && rate == 0) {
    table.diag().error(Kind::conflict, table.at("lr"),
                       "`{}` is a multiple of `optimizer.lr`, which is 0; use `lr_factor`", table.path("lr"));
  } else if (own) {
    return *own / rate;
  }
  return factor.value_or(1);
}

}  // namespace

void read_groups(TableReader& optimizer, ModelFile& model) {
  const Node* groups = optimizer.list("groups");
  if (groups == nullptr) return;
  for (const Node& node : groups->items) {
    if (!optimizer.is(node, "optimizer.groups", Node::Form::table)) continue;
    const auto number = static_cast<int64_t>(model.groups.size());
    TableReader table(node, "[[optimizer.groups]]", "optimizer.groups.", optimizer.diag());
    GroupSpec group{read_patterns(table)};
    ir::Attrs& settings = model.settings;
    for (size_t i = 0; i < group.match.size(); ++i)
      settings[ir::group_key(number, fmt::format("match.{}", i))] = group.match[i].name;
    if (const auto decay = table.real("weight_decay", at_least(0)))
      settings[ir::group_key(number, "weight_decay")] = *decay;
    const double factor = read_factor(table, std::get<double>(settings["optimizer.lr"]));
    if (factor != 1) settings[ir::group_key(number, "lr_factor")] = factor;
    table.finish();
    model.groups.push_back(std::move(group));
  }
}

void assign_groups(const ModelFile& model, ir::Module& module, Diag& diag) {
  if (diag.failed()) return;  // parameters may be missing
  std::vector<std::string_view> names;
  for (const ir::Buffer& buffer : module.buffers)
    if (buffer.kind == ir::BufferKind::param) names.push_back(buffer.name);
  for (size_t g = 0; g < model.groups.size(); ++g) {
    for (const Named& pattern : model.groups[g].match) {
      bool found = false;
      for (ir::Buffer& buffer : module.buffers) {
        if (buffer.kind != ir::BufferKind::param || !matches(pattern.name, buffer.name)) continue;
        found = true;
        if (buffer.group < 0) buffer.group = static_cast<int32_t>(g);
      }
      if (!found)
        diag.error(Kind::unknown_name, pattern.at, "no parameter is named `{}`{}", pattern.name,
                   did_you_mean(pattern.name, names));
    }
  }
}

}  // namespace gacc::frontend
