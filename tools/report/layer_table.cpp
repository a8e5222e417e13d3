// See layers.h.
#include "tools/report/layer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gacc::report {

namespace {

using namespace ir;

// The ends of the dotted parts of a name, the shortest prefix first.
std::vector<size_t> ends(const std::string& name) {
  std::vector<size_t> result;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    result.push_back(dot);
  result.push_back(name.size());
  return result;
}

std::string cut(const std::string& name, size_t parts) {
  const std::vector<size_t> at = ends(name);
  return parts >= at.size() ? name : name.substr(0, at[parts - 1]);
}

size_t distinct(const std::vector<std::string>& names) {
  return std::set<std::string>(names.begin(), names.end()).size();
}

}  // namespace

bool is_recomputed(const Op& op) { return op.remat.has_value(); }

LayerNames::LayerNames(const Module& module, const Region& region) : module_(module), region_(region) {
  for (const Buffer& buffer : module.buffers) {
    const size_t dot = buffer.name.rfind('.');
    if (buffer.kind == BufferKind::param && dot != std::string::npos)
      layers_.insert(buffer.name.substr(0, dot));
  }
  for (const Op& op : region.ops) {
    for (const ValueId result : op.results) {
      const std::string& name = region[result].name;
      if (op.origin == Origin::forward) {
        made_.insert({op.at.line, op.at.column, name});
        forward_.insert(name);
      }
      if (name.rfind("loss.", 0) == 0) loss_.insert({op.at.line, op.at.column});
    }
  }
  if (forward_.empty()) return;
  // The projection of an attention: its forward ops bear the attention's name, so its backward ops are there.
  std::erase_if(layers_, [&](const std::string& layer) {
    const auto part = forward_.lower_bound(layer + ".");
    return forward_.count(layer) == 0 && (part == forward_.end() || !part->starts_with(layer + "."));
  });
}

std::string LayerNames::of(const Op& op) const {
  std::string name;
  if (!op.results.empty()) {
    name = region_[op.results.front()].name;
  } else if (!op.operands.empty()) {
    if (const BufferId* buffer = as_buffer(op.operands.front())) name = module_[*buffer].name;
  }
  if (name.rfind("d.", 0) == 0) name = name.substr(2);
  const std::vector<size_t> at = ends(name);
  for (size_t i = at.size(); i-- > 0;)  // a parameter belongs to the innermost layer
    if (const std::string prefix = name.substr(0, at[i]); layers_.count(prefix) != 0) return prefix;
  if (name.rfind("loss.", 0) == 0 || loss_.count({op.at.line, op.at.column}) != 0) return "loss";
  for (const size_t end : at) {
    const std::string prefix = name.substr(0, end);
    if (made_.count({op.at.line, op.at.column, prefix}) != 0) return prefix;
  }
  for (size_t i = at.size(); i-- > 0;)
    if (const std::string prefix = name.substr(0, at[i]); forward_.count(prefix) != 0) return prefix;
  return name;
}

std::vector<std::string> group_layers(const std::vector<std::string>& names, size_t most) {
  std::vector<std::string> groups = names;
  const auto cut_all = [&](size_t parts) {
    for (size_t i = 0; i < names.size(); ++i) groups[i] = cut(names[i], parts);
    return distinct(groups);
  };
  size_t parts = 1;
  for (const std::string& name : names) parts = std::max(parts, ends(name).size());
  const size_t longest = parts;
  while (parts > 1 && cut_all(parts) > most) --parts;
  if (cut_all(parts) < most / 4 && parts < longest) cut_all(parts + 1);  // too coarse: rather runs
  std::vector<std::string> order;
  std::map<std::string, size_t> number;
  for (const std::string& group : groups)
    if (number.try_emplace(group, order.size()).second) order.push_back(group);
  if (order.size() <= most) return groups;
  const size_t run = (order.size() + most - 1) / most;
  for (std::string& group : groups) {
    const size_t first = number[group] / run * run, last = std::min(first + run, order.size()) - 1;
    group = first == last ? order[first] : fmt::format("{} … {}", order[first], order[last]);
  }
  return groups;
}

}  // namespace gacc::report
