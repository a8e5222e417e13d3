// Draws memory over the kernels, as text for a terminal and as an SVG. Long programs are thinned out to a column for
// several kernels, which shows the fullest of them, so that no peak is lost.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "ir/text/size_text.h"
#include "tools/report/memory_map.h"
#include "tools/report/page_html.h"
#include "tools/report/report.h"

namespace gacc::report {

namespace {

// Returns the fullest kernel of each of at most `most` runs of a region's kernels.
std::vector<const KernelRow*> columns(const RegionMap& region, size_t most) {
  const size_t count = std::min(most, region.kernels.size());
  std::vector<const KernelRow*> result;
  for (size_t i = 0; i < count; ++i) {
    const auto first = region.kernels.begin() + i * region.kernels.size() / count;
    const auto end = region.kernels.begin() + (i + 1) * region.kernels.size() / count;
    result.push_back(&*std::ranges::max_element(first, end, {}, &KernelRow::live_bytes));
  }
  return result;
}

// Returns the bytes of the values alone: what does not stay.
int64_t value_bytes(const KernelRow& row) {
  return std::accumulate(row.live.begin() + static_cast<size_t>(Category::inputs), row.live.end(),
                         int64_t{0});
}

// Returns its class in the page's style.
std::string class_of(Category category) {
  std::string name(category_text(category));
  std::ranges::replace(name, ' ', '-');
  return name;
}

}  // namespace

std::string timeline_text(const ir::Module& module, size_t width) {
  const MemoryMap map = memory_map(module);
  constexpr std::string_view kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr size_t kShown = 5, kLeft = 20, kMostBars = 72;
  const size_t bars_of_line = std::clamp<size_t>(width - std::min(width, kLeft), 10, kMostBars);
  if (map.empty()) return {};
  std::string out = "timeline of the values in use";
  int64_t top = 1;
  for (const RegionMap& region : map.regions)
    for (const KernelRow& row : region.kernels) top = std::max(top, value_bytes(row));
  out += fmt::format(" (full block: {})\n", ir::short_size_text(top));
  for (const RegionMap& region : map.regions) {
    if (region.kernels.empty() || region.kind == ir::RegionKind::init) continue;
    std::string bars;
    for (const KernelRow* row : columns(region, bars_of_line))
      bars += kBlocks[std::clamp<int64_t>(value_bytes(*row) * 8 / top, 0, 7)];
    const std::string_view first = std::string_view(bars).substr(0, kBlocks[0].size());
    const bool flat =
        bars.size() > first.size() && bars.substr(first.size()) == bars.substr(0, bars.size() - first.size());
    if (flat) bars = fmt::format("{} throughout", first);
    out += fmt::format("  {:<18}{}\n", region_name(region.kind), bars);
  }
  const RegionMap& fullest = map.regions[map.peak_region];
  out += fmt::format("  {:<18}kernel {} of {} of the {} ({})\n", "peak at", map.peak_kernel + 1,
                     fullest.kernels.size(), region_name(fullest.kind), map.peak().label);
  std::vector<const Holding*> alive;
  for (const size_t i : map.peak().held) alive.push_back(&fullest.values[i]);
  std::ranges::stable_sort(alive, std::greater{}, &Holding::bytes);
  int64_t rest = 0;
  for (size_t i = 0; i < alive.size(); ++i) {
    if (i >= kShown)
      rest += alive[i]->bytes;
    else
      out += fmt::format("  {:<18}{:>10}  {} ({})\n", i == 0 ? "alive then" : "",
                         ir::short_size_text(alive[i]->bytes), alive[i]->name,
                         category_text(alive[i]->category));
  }
  if (rest > 0)
    out += fmt::format("  {:<18}{:>10}  {}\n", "", ir::short_size_text(rest),
                       ir::counted(alive.size() - kShown, "smaller value"));
  return out;
}

std::string memory_svg(const ir::Module& module) {
  constexpr double kWidth = 1160, kLeft = 74, kRight = 1148, kTop = 34, kBottom = 204, kGap = 8;
  constexpr double kColumns = 360;     // over all regions
  constexpr double kStepShare = 0.68;  // of the width, at least: the step is what runs most
  const MemoryMap map = memory_map(module);
  const auto y = [&](int64_t bytes) {
    return kBottom - (kBottom - kTop) * static_cast<double>(bytes) /
                         static_cast<double>(std::max<int64_t>(map.arena, 1));
  };
  const std::string_view page = kPageHtml, opening = "<style>", closing = "</style>";
  const size_t style = page.find(opening);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"memory in "
      "use over "
      "the kernels\">\n{}svg {{ background: var(--page); margin: 0; }}\n</style>\n",
      kWidth, kBottom + 22, page.substr(style, page.find(closing) - style));
  const auto line = [&](double x, double end, int64_t bytes, std::string_view of) {
    out += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" class=\"{3}\"/>\n",
                       x, y(bytes), end, of);
  };
  const auto text = [&](double x, double at, std::string_view anchor, std::string_view of,
                        std::string_view words) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, at,
                       anchor, of, words);
  };
  const auto step_bytes = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(map.arena) / 4 + 1));
  for (int64_t bytes = 0; bytes <= map.arena; bytes += step_bytes) {
    line(kLeft, kRight, bytes, "g");
    text(kLeft - 6, y(bytes) + 4, "end", "t", ir::short_size_text(bytes));
  }
  size_t all = 0, regions = 0;
  for (const RegionMap& region : map.regions) {
    all += region.kernels.size();
    regions += region.kernels.empty() ? 0 : 1;
  }
  ByCategory most{};
  double x = kLeft;
  for (const RegionMap& region : map.regions) {
    if (region.kernels.empty()) continue;
    const auto own = static_cast<double>(region.kernels.size()), total = static_cast<double>(all);
    const auto step = static_cast<double>(map.regions.front().kernels.size());
    const double of_step = all == map.regions.front().kernels.size() ? 1 : std::max(kStepShare, step / total);
    const double share = region.kind == ir::RegionKind::step ? of_step : (1 - of_step) * own / (total - step);
    const double width = (kRight - kLeft - kGap * static_cast<double>(regions - 1)) * share;
    const std::vector<const KernelRow*> shown =
        columns(region, std::max<size_t>(1, static_cast<size_t>(std::lround(kColumns * share))));
    std::vector<int64_t> base(shown.size(), 0);
    for (size_t c = 0; c < kCategories; ++c) {
      std::string upper = fmt::format("M{:.1f} {:.1f}", x, y(base.front())), lower;
      for (size_t i = 0; i < shown.size(); ++i) {
        const double left = x + width * static_cast<double>(i) / static_cast<double>(shown.size());
        const double right = x + width * static_cast<double>(i + 1) / static_cast<double>(shown.size());
        lower = fmt::format("V{:.1f}H{:.1f}{}", y(base[i]), left, lower);
        base[i] += shown[i]->live[c];
        most[c] = std::max(most[c], shown[i]->live[c]);
        upper += fmt::format("V{:.1f}H{:.1f}", y(base[i]), right);
      }
      if (most[c] > 0)
        out += fmt::format("<path d=\"{}{}Z\" class=\"{}\"/>\n", upper, lower,
                           class_of(static_cast<Category>(c)));
    }
    line(x, x + width, 0, "a");
    if (width > 34)
      text(x + width / 2, kBottom + 15, "middle", "t",
           width > 150
               ? fmt::format("{}: {}", region_name(region.kind), ir::counted(region.kernels.size(), "kernel"))
               : std::string(ir::region_text(region.kind)));
    x += width + kGap;
  }
  line(kLeft, kRight, map.arena, "p");
  text(kRight, y(map.arena) - 5, "end", "t b",
       fmt::format("the arena: {} (all that is allocated)", ir::short_size_text(map.arena)));
  double at = kLeft;
  for (size_t c = 0; c < kCategories; ++c) {
    if (most[c] == 0) continue;
    const auto category = static_cast<Category>(c);
    out += fmt::format("<rect x=\"{}\" y=\"8\" width=\"12\" height=\"12\" class=\"{}\"/>\n", at,
                       class_of(category));
    text(at + 18, 18, "start", "t", category_text(category));
    at += 110;
  }
  return out + "</svg>\n";
}

}  // namespace gacc::report
