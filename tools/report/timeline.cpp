// Stacked areas with one column a kernel. Long programs are thinned out to a column for several kernels,
// which shows the fullest of them, so that no peak is lost.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "compiler/plan/show.h"
#include "ir/text/size_text.h"
#include "tools/report/markup.h"
#include "tools/report/sections.h"

namespace gacc::report {

namespace {

constexpr double kWidth = 1160, kLeft = 74, kRight = 12, kTop = 34, kBottom = 22, kGap = 8;
constexpr size_t kColumns = 360;     // of a picture, over all regions
constexpr double kStepShare = 0.68;  // of the width, at least: the step is what runs most
constexpr size_t kBars = 72;         // of a sparkline

// From bottom to top: what never moves first.
constexpr Category kStack[] = {Category::weights,    Category::half_weights, Category::gradients,
                               Category::optimizer,  Category::inputs,       Category::activations,
                               Category::recomputed, Category::workspace};
bool persistent(Category category) { return category < Category::inputs; }

int64_t sum(const ByCategory& bytes, bool everything) {
  const size_t first = everything ? 0 : static_cast<size_t>(Category::inputs);
  return std::accumulate(bytes.begin() + first, bytes.end(), int64_t{0});
}

// Kernels first..last of a region, shown as the fullest one.
struct Column {
  size_t region = 0, fullest = 0, first = 0, last = 0;
};

std::vector<Column> columns(const MemoryMap& map, size_t region, size_t most) {
  const std::vector<KernelRow>& kernels = map.regions[region].kernels;
  std::vector<Column> result;
  const size_t count = std::min(most, kernels.size());
  for (size_t i = 0; i < count; ++i) {
    const size_t first = i * kernels.size() / count, end = (i + 1) * kernels.size() / count;
    const auto fullest =
        std::ranges::max_element(kernels.begin() + first, kernels.begin() + end, {}, &KernelRow::live_bytes);
    result.push_back({region, static_cast<size_t>(fullest - kernels.begin()), first, end - 1});
  }
  return result;
}

std::string column_title(const MemoryMap& map, const Column& column) {
  const RegionMap& region = map.regions[column.region];
  const KernelRow& row = region.kernels[column.fullest];
  std::string title =
      fmt::format("{}, kernel {} of {}", region_name(region.kind), column.fullest + 1, region.kernels.size());
  if (column.first != column.last)
    title += fmt::format(" (the fullest of {} to {})", column.first + 1, column.last + 1);
  title += fmt::format("\n{}\n{} in use", shortened(row.label, 90), ir::short_size_text(sum(row.live, true)));
  for (const Category category : kStack)
    if (const int64_t bytes = row.live[static_cast<size_t>(category)]; bytes > 0 && !persistent(category))
      title += fmt::format("\n  {} {}", category_text(category), ir::short_size_text(bytes));
  return title;
}

// One picture. `everything`: buffers too.
std::string picture(const MemoryMap& map, bool everything, double height) {
  int64_t top = 1;
  for (const RegionMap& region : map.regions)
    for (const KernelRow& row : region.kernels) top = std::max(top, sum(row.live, everything));
  if (everything) top = std::max(top, map.arena);
  const double inner = kWidth - kLeft - kRight - kGap * static_cast<double>(map.regions.size() - 1);
  const double bottom = kTop + height;
  const auto y = [&](int64_t bytes) {
    return bottom - height * static_cast<double>(bytes) / static_cast<double>(top);
  };
  Svg svg(kWidth, kTop + height + kBottom,
          everything ? "memory in use over the kernels" : "memory of values over the kernels");
  const int64_t step = byte_step(top, 4);
  for (int64_t at = 0; at <= top; at += step) {
    svg.line(kLeft, y(at), kWidth - kRight, y(at), "class=\"g\"");
    svg.text(kLeft - 6, y(at) + 4, ir::short_size_text(at), "end");
  }
  double x = kLeft, peak_x = kLeft;
  for (size_t r = 0; r < map.regions.size(); ++r) {
    const size_t kernels = map.regions[r].kernels.size();
    if (kernels == 0) continue;
    const double share = region_share(map, r);
    const double width = inner * share;
    const auto most = std::max<size_t>(1, static_cast<size_t>(std::lround(kColumns * share)));
    const std::vector<Column> shown = columns(map, r, most);
    const double each = width / static_cast<double>(shown.size());
    std::vector<int64_t> base(shown.size(), 0);
    for (const Category category : kStack) {
      if (!everything && persistent(category)) continue;
      std::string upper, lower;
      bool any = false;
      for (size_t i = 0; i < shown.size(); ++i) {
        const double left = x + each * static_cast<double>(i);
        const int64_t bytes = map.regions[r].kernels[shown[i].fullest].live[static_cast<size_t>(category)];
        any = any || bytes > 0;
        lower = fmt::format("V{}H{}", number(y(base[i])), number(left)) + lower;
        base[i] += bytes;
        upper += fmt::format("{}{}H{}", i == 0 ? fmt::format("M{} ", number(left)) : "V", number(y(base[i])),
                             number(left + each));
      }
      if (any) svg.path(upper + lower + "Z", fmt::format("fill=\"{}\"", colour(category)));
    }
    for (size_t i = 0; i < shown.size(); ++i) {
      const double left = x + each * static_cast<double>(i);
      if (r == map.peak_region && shown[i].first <= map.peak_kernel && map.peak_kernel <= shown[i].last)
        peak_x = left + each / 2;
      svg.rect(left, kTop, each, height, "class=\"h\"", column_title(map, shown[i]));
    }
    svg.line(x, bottom, x + width, bottom, "class=\"a\"");
    const std::string name(region_name(map.regions[r].kind));
    if (width > 34)
      svg.text(x + width / 2, bottom + 15,
               width > 150 ? fmt::format("{}: {}", name, ir::counted(kernels, "kernel"))
                           : std::string(ir::region_text(map.regions[r].kind)),
               "middle");
    x += width + kGap;
  }
  if (everything) {
    svg.line(kLeft, y(map.arena), kWidth - kRight, y(map.arena), "class=\"p\"");
    svg.text(kWidth - kRight, y(map.arena) - 5,
             fmt::format("the arena: {} (all that is allocated)", ir::short_size_text(map.arena)), "end",
             "t b");
  } else {
    svg.line(peak_x, kTop - 6, peak_x, bottom, "class=\"p\"");
    const bool left = peak_x < kWidth / 2;
    svg.text(peak_x + (left ? 5 : -5), kTop - 10,
             fmt::format("peak: {} of values, while {} runs",
                         ir::short_size_text(sum(map.peak().live, false)), shortened(map.peak().label, 60)),
             left ? "start" : "end", "t b");
  }
  return svg.finish();
}

// A list of coloured squares with names, for the categories that are in use.
std::string legend(const MemoryMap& map) {
  ByCategory most = map.always;
  for (const RegionMap& region : map.regions)
    for (const KernelRow& row : region.kernels)
      for (size_t c = 0; c < kCategories; ++c) most[c] = std::max(most[c], row.live[c]);
  std::string out = "<p class=\"legend\">";
  for (const Category category : kStack)
    if (most[static_cast<size_t>(category)] > 0)
      out += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ", colour(category),
                         category_text(category));
  return out + "</p>\n";
}

// The values alive at the peak, the largest first.
std::vector<const Holding*> alive_at_peak(const MemoryMap& map) {
  std::vector<const Holding*> alive;
  for (const size_t i : map.peak().held) alive.push_back(&map.regions[map.peak_region].values[i]);
  std::ranges::stable_sort(alive, std::greater{}, &Holding::bytes);
  return alive;
}

}  // namespace

std::string_view region_name(ir::RegionKind kind) {
  constexpr std::string_view names[] = {// in the order of ir/regions.def
                                        "initialisation",
                                        "step",
                                        "update",
                                        "evaluation",
                                        "prediction",
                                        "closing a lane",
                                        "a part of a prediction",
                                        "parts of norms",
                                        "parts of ratios",
                                        "clearing sums"};
  return names[static_cast<size_t>(kind)];
}

double region_share(const MemoryMap& map, size_t region) {
  size_t others = 0, total = 0;
  for (const RegionMap& each : map.regions) total += each.kernels.size();
  others = total - map.regions.front().kernels.size();
  const double step =
      others == 0 ? 1 : std::max(kStepShare, 1 - static_cast<double>(others) / static_cast<double>(total));
  if (region == 0) return step;
  return (1 - step) * static_cast<double>(map.regions[region].kernels.size()) / static_cast<double>(others);
}

std::string peak_sentence(const MemoryMap& map) {
  const RegionMap& region = map.regions[map.peak_region];
  return fmt::format("kernel {} of {} of the {} ({})", map.peak_kernel + 1, region.kernels.size(),
                     region_name(region.kind), map.peak().label);
}

std::string timeline_html(const MemoryMap& map) {
  std::string out = legend(map);
  out +=
      "<p>All memory in use, from left to right as the kernels run. Weights, gradients and the optimizer's "
      "state stay for the whole training; only the top of the picture moves.</p>\n";
  out += picture(map, true, 170);
  out +=
      "<p>The moving part alone, enlarged: the values that kernels hand to each other. In the step it grows "
      "while the forward pass keeps what the backward pass will need, and shrinks while the backward pass "
      "uses it up. Point at a column for its figures.</p>\n";
  out += picture(map, false, 250);
  return out;
}

std::string peak_html(const MemoryMap& map) {
  constexpr size_t kShown = 16;
  const std::vector<const Holding*> alive = alive_at_peak(map);
  std::string out =
      "<table><tr><th>value</th><th>what it is</th><th>shape</th><th class=\"n\">memory</th></tr>\n";
  const auto row = [&](const std::string& name, const std::string& what, const std::string& shape,
                       int64_t bytes, std::string_view square) {
    out += fmt::format("<tr><td>{}{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td></tr>\n",
                       square.empty() ? "" : fmt::format("<i style=\"background:{}\"></i>", square),
                       escaped(shortened(name, 60)), what, escaped(shape), ir::short_size_text(bytes));
  };
  int64_t rest = 0, values = 0;
  for (size_t i = 0; i < alive.size(); ++i) {
    values += alive[i]->bytes;
    if (i >= kShown)
      rest += alive[i]->bytes;
    else
      row(alive[i]->name, std::string(category_text(alive[i]->category)), alive[i]->type, alive[i]->bytes,
          colour(alive[i]->category));
  }
  if (rest > 0) row(ir::counted(alive.size() - kShown, "smaller value"), "", "", rest, "");
  int64_t buffers = 0;
  for (const Category category : kStack) {
    const int64_t bytes = persistent(category) ? map.always[static_cast<size_t>(category)] : 0;
    buffers += bytes;
    if (bytes > 0)
      row(fmt::format("all {}", category_text(category)), "lives for the whole training", "", bytes,
          colour(category));
  }
  row("rounding of places to 256 bytes, and gaps", "", "", map.arena - buffers - values, "");
  out += fmt::format(
      "<tr class=\"sum\"><td>together: the arena</td><td></td><td></td><td class=\"n\">{}</td></tr>\n",
      ir::short_size_text(map.arena));
  return out + "</table>\n";
}

std::string timeline_text(const ir::Module& module) {
  const MemoryMap map = memory_map(module);
  constexpr std::string_view kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr size_t kShown = 5;
  if (map.empty()) return {};
  std::string out = "timeline of the values in use";
  int64_t top = 1;
  for (const RegionMap& region : map.regions)
    for (const KernelRow& row : region.kernels) top = std::max(top, sum(row.live, false));
  out += fmt::format(" (full block: {})\n", ir::short_size_text(top));
  for (size_t r = 0; r < map.regions.size(); ++r) {
    const RegionMap& region = map.regions[r];
    if (region.kernels.empty() || region.kind == ir::RegionKind::init) continue;
    std::string bars;
    for (const Column& column : columns(map, r, kBars)) {
      const int64_t bytes = sum(region.kernels[column.fullest].live, false);
      bars += kBlocks[std::clamp<int64_t>(bytes * 8 / top, 0, 7)];
    }
    out += fmt::format("  {:<18}{}\n", region_name(region.kind), bars);
  }
  out += fmt::format("  {:<18}{}\n", "peak at", peak_sentence(map));
  const std::vector<const Holding*> alive = alive_at_peak(map);
  for (size_t i = 0; i < alive.size() && i < kShown; ++i)
    out +=
        fmt::format("  {:<18}{:>10}  {} ({})\n", i == 0 ? "alive then" : "",
                    ir::short_size_text(alive[i]->bytes), alive[i]->name, category_text(alive[i]->category));
  if (alive.size() > kShown) {
    const int64_t rest =
        std::accumulate(alive.begin() + kShown, alive.end(), int64_t{0},
                        [](int64_t sum, const Holding* value) { return sum + value->bytes; });
    out += fmt::format("  {:<18}{:>10}  {}\n", "", ir::short_size_text(rest),
                       ir::counted(alive.size() - kShown, "smaller value"));
  }
  return out;
}

}  // namespace gacc::report
