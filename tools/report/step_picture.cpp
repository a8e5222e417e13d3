// Kernels are boxes in rows of their layers. Bytes between the columns are of the values that a forward
// kernel of the layer made and a backward kernel still reads.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "compiler/plan/show.h"
#include "ir/text/size_text.h"
#include "tools/report/markup.h"
#include "tools/report/sections.h"

namespace gacc::report {

namespace {

constexpr double kWidth = 1160, kHead = 34, kName = 210, kColumn = 340, kMiddle = 260;
constexpr size_t kRows = 44;     // layers, or groups of them
constexpr size_t kListed = 250;  // kernels in the list
constexpr size_t kBoxes = 700;   // of one column of the picture

struct Row {
  std::string name;
  std::array<std::vector<size_t>, 4> kernels;  // by role
  int64_t kept = 0, again = 0;                 // bytes
};

std::string_view role_colour(Role role) {
  return role == Role::forward ? "#4c78a8" : role == Role::recomputed ? "#a6d854" : "#e0844f";
}
std::string_view role_text(Role role) {
  return role == Role::forward ? "forward" : role == Role::recomputed ? "made again" : "backward";
}

// One box for each kernel, or, where there are too many, for several.
void boxes(Svg& svg, const RegionMap& step, const std::vector<size_t>& kernels, Role role, double left,
           double width, double y, double height, size_t rows) {
  constexpr double kLeast = 5;
  const size_t most = std::clamp<size_t>(static_cast<size_t>(width / kLeast), 1, kBoxes / rows);
  const size_t count = std::min(most, kernels.size());
  const double each = std::min(26.0, width / static_cast<double>(std::max<size_t>(count, 1)));
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * kernels.size() / count, last = (i + 1) * kernels.size() / count - 1;
    const KernelRow& row = step.kernels[kernels[first]];
    std::string title =
        fmt::format("kernel {}: {}\n{}", kernels[first] + 1, shortened(row.label, 90), role_text(role));
    if (row.flops > 0) title += fmt::format(", {:.3g} MFLOP", static_cast<double>(row.flops) / 1e6);
    if (last > first) title += fmt::format("\nand {} more", last - first);
    svg.rect(left + each * static_cast<double>(i), y, each - 1.5, height,
             fmt::format("class=\"k\" fill=\"{}\"", role_colour(role)), title);
  }
}

std::string picture(const RegionMap& step, const std::vector<Row>& rows, bool any_again) {
  const double height = std::clamp(720.0 / static_cast<double>(rows.size()), 17.0, 30.0);
  const double total = kHead + height * static_cast<double>(rows.size()) + 10;
  const double forward = kName, middle = forward + kColumn, backward = middle + kMiddle;
  Svg svg(kWidth, total, "the graph of the step");
  svg.text(4, 16, "layer", "start", "t b");
  svg.text(forward, 16, "forward ↓", "start", "t b");
  svg.text(middle + kMiddle / 2, 16, any_again ? "kept, or made again, for backward" : "kept for backward",
           "middle", "t b");
  svg.text(backward, 16, any_again ? "made again, backward ↑" : "backward ↑", "start", "t b");
  int64_t most = 1;
  for (const Row& row : rows) most = std::max({most, row.kept, row.again});
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double y = kHead + height * static_cast<double>(i), center = y + height / 2;
    svg.line(0, y, kWidth, y, "class=\"g\"");
    svg.text(4, center + 4, shortened(row.name, 30));
    boxes(svg, step, row.kernels[0], Role::forward, forward, kColumn - 20, y + 3, height - 6, rows.size());
    const auto& again = row.kernels[static_cast<size_t>(Role::recomputed)];
    const auto& back = row.kernels[static_cast<size_t>(Role::backward)];
    const double room = kWidth - backward - 6;
    const double first = again.empty() ? 0
                                       : std::min(26.0 * static_cast<double>(again.size()),
                                                  room * static_cast<double>(again.size()) /
                                                      static_cast<double>(again.size() + back.size()));
    boxes(svg, step, again, Role::recomputed, backward, first, y + 3, height - 6, rows.size());
    boxes(svg, step, back, Role::backward, backward + first, room - first, y + 3, height - 6, rows.size());
    const auto arrow = [&](int64_t bytes, double at, std::string_view style, std::string_view what) {
      if (bytes == 0) return;
      const double thick = 1.2 + 5.0 * static_cast<double>(bytes) / static_cast<double>(most);
      const std::string label = fmt::format("{}{}", ir::short_size_text(bytes), what);
      constexpr double kHalfLetter = 3.5;  // of its width
      const double gap = 8 + kHalfLetter * static_cast<double>(label.size()),
                   text = middle + kMiddle / 2 - 10;
      svg.path(fmt::format("M{} {}H{}M{} {}H{}", number(middle - 8), number(at), number(text - gap),
                           number(text + gap), number(at), number(backward - 14)),
               fmt::format("{} stroke-width=\"{}\"", style, number(thick)));
      svg.path(fmt::format("M{} {}l-7 -4.5v9z", number(backward - 7), number(at)), "class=\"m\"");
      svg.text(text, at + 4, label, "middle");
    };
    const bool both = row.kept > 0 && row.again > 0 && height > 26;
    if (row.kept > 0 && row.again > 0 && !both) {  // no room for two: their sum
      arrow(row.kept + row.again, center, "class=\"s d\"", " in part again");
      continue;
    }
    arrow(row.kept, center - (both ? 7 : 0), "class=\"s\"", "");
    arrow(row.again, center + (both ? 7 : 0), "class=\"s d\"", " again");
  }
  return svg.finish();
}

std::string list(const RegionMap& step) {
  std::string out =
      "<details><summary>All kernels of the step, in the order they run</summary>\n<table><tr><th "
      "class=\"n\">nr</th><th>what it does</th><th>layer</th><th>pass</th><th class=\"n\">MFLOP</th><th "
      "class=\"n\">values in use</th></tr>\n";
  const size_t shown = std::min(kListed, step.kernels.size());
  for (size_t k = 0; k < shown; ++k) {
    const KernelRow& row = step.kernels[k];
    out += fmt::format(
        "<tr><td class=\"n\">{}</td><td>{}</td><td>{}</td><td><i style=\"background:{}\"></i>{}</td><td "
        "class=\"n\">{:.3f}</td><td class=\"n\">{}</td></tr>\n",
        k + 1, escaped(shortened(row.label, 90)), escaped(shortened(row.layer, 40)), role_colour(row.role),
        role_text(row.role), static_cast<double>(row.flops) / 1e6, ir::short_size_text(row.live_bytes));
  }
  out += "</table>\n";
  if (shown < step.kernels.size())
    out += fmt::format("<p class=\"note\">and {} more; <code>gaccc --emit ir</code> lists all.</p>\n",
                       step.kernels.size() - shown);
  return out + "</details>\n";
}

// At most `most` groups of neighbouring layers, by cutting names to their first parts and, where that is not
// enough, by joining runs. `names` in order of first appearance; the result has one group for each of them.
std::vector<std::string> group_layers(const std::vector<std::string>& names, size_t most) {
  std::vector<std::string> groups = names;
  const auto cut_all = [&](size_t parts) {
    for (size_t i = 0; i < names.size(); ++i) {
      const std::vector<std::string> cuts = prefixes(names[i]);
      groups[i] = cuts[cuts.size() - std::min(parts, cuts.size())];
    }
    return std::set<std::string>(groups.begin(), groups.end()).size();
  };
  size_t parts = 1;
  for (const std::string& name : names) parts = std::max(parts, prefixes(name).size());
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

}  // namespace

std::string step_graph_html(const MemoryMap& map) {
  const RegionMap& step = map.regions.front();
  const std::vector<std::string> groups = group_layers(step.layers, kRows);
  std::map<std::string, std::string> group_of;  // by layer
  for (size_t i = 0; i < groups.size(); ++i) group_of[step.layers[i]] = groups[i];
  std::vector<Row> rows;
  std::map<std::string, size_t> number_of;
  for (const std::string& group : groups)
    if (number_of.try_emplace(group, rows.size()).second) rows.push_back({group, {}, 0, 0});
  for (size_t k = 0; k < step.kernels.size(); ++k) {
    const KernelRow& kernel = step.kernels[k];
    rows[number_of[group_of[kernel.layer]]].kernels[static_cast<size_t>(kernel.role)].push_back(k);
  }
  for (const Holding& value : step.values) {
    if (value.category == Category::inputs) continue;
    const auto first = static_cast<size_t>(value.first), last = static_cast<size_t>(value.last);
    if (step.kernels[last].role == Role::forward) continue;
    Row& row = rows[number_of[group_of[value.layer]]];
    if (value.category == Category::recomputed)
      row.again += value.bytes;
    else if (step.kernels[first].role == Role::forward && value.category == Category::activations)
      row.kept += value.bytes;
  }
  const bool any_again = std::ranges::any_of(rows, [](const Row& row) { return row.again > 0; });
  std::erase_if(rows, [](const Row& row) {
    const auto none = [](const auto& kernels) { return kernels.empty(); };
    return row.kept + row.again == 0 && std::ranges::all_of(row.kernels, none);
  });
  if (rows.empty()) return "<p>The step runs no kernels.</p>\n";
  std::string out = "<p class=\"legend\">";
  for (const Role role : {Role::forward, Role::recomputed, Role::backward}) {
    if (role == Role::recomputed && !any_again) continue;
    out += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ", role_colour(role), role_text(role));
  }
  return out + "</p>\n" + picture(step, rows, any_again) + list(step);
}

}  // namespace gacc::report
