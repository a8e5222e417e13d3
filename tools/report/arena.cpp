// Two panels: at the left the whole arena, where buffers have a place for ever; at the right its transient
// part, enlarged, over the kernels. Only so many rectangles have a name to show; the smaller ones are drawn
// together, a path for each category.
#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "compiler/plan/show.h"
#include "ir/text/size_text.h"
#include "tools/report/markup.h"
#include "tools/report/sections.h"

namespace gacc::report {

namespace {

constexpr double kWidth = 1160, kTop = 26, kHeight = 430, kBottom = 26;
constexpr double kColumnLeft = 74, kColumnWidth = 170;  // the whole arena
constexpr double kPanelLeft = 400, kRight = 12, kGap = 8;
constexpr size_t kNamed = 500;  // rectangles with a name, of buffers and of values

struct Box {
  const Holding* holding;
  double x, y, width, height;
  std::string title;
};

void draw(Svg& svg, std::vector<Box> boxes) {
  std::ranges::stable_sort(boxes, std::greater{}, [](const Box& box) { return box.width * box.height; });
  std::array<std::string, kCategories> rest;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& box = boxes[i];
    const Category category = box.holding->category;
    if (i >= kNamed) {
      rest[static_cast<size_t>(category)] += fmt::format("M{} {}h{}v{:.2f}h{}z", number(box.x), number(box.y),
                                                         number(box.width), box.height, number(-box.width));
      continue;
    }
    svg.rect(box.x, box.y, box.width, box.height,
             fmt::format("class=\"{}\" fill=\"{}\"", box.height < 2 ? "k" : "r", colour(category)),
             box.title);
    const size_t room = static_cast<size_t>(box.width / 7);
    if (box.height >= 13 && (room >= 7 || room >= box.holding->name.size()))
      svg.text(box.x + 4, box.y + box.height / 2 + 4, shortened(box.holding->name, room), "start", "t l");
  }
  for (size_t c = 0; c < kCategories; ++c) {
    if (!rest[c].empty())
      svg.path(rest[c], fmt::format("fill=\"{}\"", colour(static_cast<Category>(c))),
               "one of the smaller places");
  }
}

}  // namespace

std::string arena_html(const MemoryMap& map) {
  const double bottom = kTop + kHeight;
  const int64_t arena = std::max<int64_t>(map.arena, 1);
  const int64_t transient = std::max<int64_t>(map.arena - map.buffers_end, 1);
  const auto whole_y = [&](int64_t offset) {
    return bottom - kHeight * static_cast<double>(offset) / static_cast<double>(arena);
  };
  const auto panel_y = [&](int64_t offset) {
    return bottom - kHeight * static_cast<double>(offset - map.buffers_end) / static_cast<double>(transient);
  };
  Svg svg(kWidth, kTop + kHeight + kBottom, "the arena map");

  // The whole arena.
  svg.text(kColumnLeft + kColumnWidth / 2, kTop - 9, "the whole arena", "middle", "t b");
  for (int64_t at = 0, step = byte_step(arena, 5); at <= arena; at += step) {
    svg.line(kColumnLeft - 4, whole_y(at), kColumnLeft, whole_y(at), "class=\"a\"");
    svg.text(kColumnLeft - 7, whole_y(at) + 4, ir::short_size_text(at), "end");
  }
  svg.rect(kColumnLeft, kTop, kColumnWidth, kHeight, "class=\"e\"");
  std::vector<Box> boxes;
  for (const Holding& buffer : map.buffers) {
    const double y = whole_y(buffer.offset + buffer.bytes);
    boxes.push_back({&buffer, kColumnLeft, y, kColumnWidth, whole_y(buffer.offset) - y,
                     fmt::format("{} {}\n{}: {} at {}", shortened(buffer.name, 90), buffer.type,
                                 category_text(buffer.category), ir::short_size_text(buffer.bytes),
                                 count_text(buffer.offset))});
  }
  const size_t buffers = boxes.size();
  draw(svg, std::move(boxes));

  // Where the right panel comes from.
  const double cut = whole_y(map.buffers_end), right = kColumnLeft + kColumnWidth;
  svg.rect(kColumnLeft, kTop, kColumnWidth, cut - kTop, "class=\"z\"",
           "the transient part, enlarged at the right");
  svg.path(fmt::format("M{} {}L{} {}V{}L{} {}Z", number(right), number(kTop), number(kPanelLeft),
                       number(kTop), number(bottom), number(right), number(cut)),
           "class=\"zoom\"");

  // The transient part over time.
  size_t regions = 0, values = 0;
  for (const RegionMap& region : map.regions) regions += !region.kernels.empty();
  const double inner = kWidth - kRight - kPanelLeft - kGap * static_cast<double>(regions - 1);
  svg.text(kPanelLeft, kTop - 9,
           fmt::format("the transient part: {}, by kernels from left to right",
                       ir::short_size_text(map.arena - map.buffers_end)),
           "start", "t b");
  for (int64_t at = 0, step = byte_step(transient, 5); at <= transient; at += step) {
    svg.line(kPanelLeft - 4, panel_y(at + map.buffers_end), kWidth - kRight, panel_y(at + map.buffers_end),
             "class=\"g\"");
    svg.text(kPanelLeft - 7, panel_y(at + map.buffers_end) + 4, "+" + ir::short_size_text(at), "end", "t w");
  }
  double x = kPanelLeft;
  boxes.clear();
  for (size_t r = 0; r < map.regions.size(); ++r) {
    const RegionMap& region = map.regions[r];
    const size_t kernels = region.kernels.size();
    if (kernels == 0) continue;
    const double width = inner * region_share(map, r);
    const double each = width / static_cast<double>(kernels);
    svg.rect(x, kTop, width, kHeight, "class=\"e\"");
    std::set<std::pair<int64_t, int>> ends;  // place and last kernel
    for (const Holding& value : region.values) ends.insert({value.offset, value.last});
    for (const Holding& value : region.values) {
      // Written over an operand that dies in the same kernel: the kernel's column is shared.
      const bool takes = value.first < value.last && ends.count({value.offset, value.first}) != 0;
      const bool gives = std::ranges::any_of(region.values, [&](const Holding& other) {
        return &other != &value && other.offset == value.offset && other.first == value.last &&
               value.first < value.last;
      });
      const double begin = value.first + (takes ? 0.5 : 0), end = value.last + (gives ? 0.5 : 1);
      const double y = panel_y(value.offset + value.bytes);
      boxes.push_back(
          {&value, x + each * begin, y, each * (end - begin), panel_y(value.offset) - y,
           fmt::format("{} {}\n{}: {} at {}, kernels {} to {} of the {}", shortened(value.name, 90),
                       value.type, category_text(value.category), ir::short_size_text(value.bytes),
                       count_text(value.offset), value.first + 1, value.last + 1, region_name(region.kind))});
    }
    values += region.values.size();
    if (width > 34)
      svg.text(x + width / 2, bottom + 16,
               std::string(width > 90 ? region_name(region.kind) : ir::region_text(region.kind)), "middle");
    x += width + kGap;
  }
  draw(svg, std::move(boxes));
  std::string out = svg.finish();
  if (buffers > kNamed || values > kNamed)
    out += fmt::format(
        "<p class=\"note\">Of {} buffers and {} values the {} largest rectangles of each kind have their "
        "names; the smaller ones are drawn without.</p>\n",
        buffers, values, kNamed);
  return out;
}

}  // namespace gacc::report
