// The page: a header with the figures that matter, then one section a question. Every picture has one plain
// sentence above it. No scripts; hints are <title> elements, which browsers show on hover.
#include <algorithm>

#include "compiler/plan/show.h"
#include "ir/text/size_text.h"
#include "tools/report/markup.h"
#include "tools/report/sections.h"

namespace gacc::report {

namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --page: #fff; --ink: #222; --soft: #555; --rule: #ddd; --gap: #eee; --zoom: #f4f4f4;
  --mark: #fff7d6; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181c; --ink: #e8e8e8; --soft: #aab; --rule: #3a3d44; --gap: #2b2e34; --zoom: #22252b;
    --mark: #453a10; } }
body { margin: 0 auto; max-width: 1200px; padding: 18px 24px 60px; color: var(--ink); background: var(--page);
  font: 15px/1.5 system-ui, "DejaVu Sans", Arial, sans-serif; }
h1 { font-size: 25px; margin: 8px 0 2px; } h2 { font-size: 19px; margin: 40px 0 6px; }
p { margin: 8px 0; max-width: 62em; } .note, .sub { color: var(--soft); }
svg { display: block; width: 100%; height: auto; margin: 6px 0 14px; }
code { font-family: "DejaVu Sans Mono", monospace; font-size: 13px; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 16px 0; }
.cards div { border: 1px solid var(--rule); border-radius: 6px; padding: 8px 14px; min-width: 100px; }
.cards b { display: block; font-size: 20px; } .cards span { color: var(--soft); font-size: 13px; }
table { border-collapse: collapse; margin: 8px 0; font-size: 14px; display: block; overflow-x: auto; }
.two { display: flex; gap: 48px; flex-wrap: wrap; }
th { text-align: left; color: var(--soft); font-weight: normal; }
td, th { padding: 2px 22px 2px 0; border-bottom: 1px solid var(--rule); }
.n { text-align: right; font-variant-numeric: tabular-nums; } .sum td { font-weight: bold; border-bottom: 0; }
i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 7px; vertical-align: -1px; }
.legend span { margin-right: 18px; white-space: nowrap; } details { margin: 8px 0; } summary { cursor: pointer; }
.bar { display: flex; height: 26px; border-radius: 4px; overflow: hidden; margin: 8px 0; background: var(--gap); }
.t { font: 12px system-ui, "DejaVu Sans", Arial, sans-serif; fill: var(--soft); }
.b { font-weight: bold; fill: var(--ink); }
.l { font-size: 11px; fill: #fff; pointer-events: none; } .g { stroke: var(--rule); } .a { stroke: #888; }
.o { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
.w { paint-order: stroke; stroke: var(--zoom); stroke-width: 3px; }
.p { stroke: var(--ink); stroke-dasharray: 4 3; } .h { fill: transparent; } .h:hover { fill: rgba(128,128,128,0.3); }
.r { stroke: var(--page); stroke-width: 0.4; } .r:hover, .k:hover { stroke: var(--ink); stroke-width: 1.5; }
.e { fill: var(--zoom); stroke: var(--rule); } .z { fill: var(--mark); stroke: #b8860b; }
.zoom { fill: var(--zoom); stroke: none; }
.s { stroke: #999; } .m { fill: #999; } .gap { background: var(--gap); } .d { stroke-dasharray: 5 4; }
.picture { overflow-x: auto; }
@media (max-width: 760px) {
  body { padding: 10px 12px 40px; } .picture svg { width: 1000px; } .cards div { flex: 1 1 120px; padding: 6px 10px; }
  td, th { padding-right: 14px; min-width: 3em; } td:first-child, .n { white-space: nowrap; } }
)";

void card(std::string& out, const std::string& value, std::string_view what) {
  out += fmt::format("<div><b>{}</b><span>{}</span></div>\n", escaped(value), what);
}

std::string header(const Plan& plan) {
  const double peak = static_cast<double>(plan.bytes.peak);
  std::string out =
      fmt::format("<h1>Memory plan of {}</h1>\n<p class=\"sub\">compiled for {}, computes in {}; {}</p>\n",
                  escaped(plan.model), escaped(plan.target), dtype_text(plan.precision),
                  plan.exact ? "an update equals that of the one big batch exactly"
                             : "an update does not equal that of the one big batch");
  for (const std::string& because : plan.because)
    out += fmt::format("<p class=\"sub\">not exact: {}</p>\n", escaped(because));
  out += "<div class=\"cards\">\n";
  card(out, ir::short_size_text(plan.bytes.peak), "peak: all that is allocated");
  card(out, ir::short_size_text(plan.bytes.lower_bound), "no plan of these kernels in this order needs less");
  card(out,
       fmt::format("{} ({} × {})", plan.micro_batch * plan.accumulate, plan.micro_batch, plan.accumulate),
       "effective batch (M × K)");
  card(out, count_text(plan.parameters), "parameters");
  card(out, count_text(plan.kernels_per_launch), "kernels a micro-batch");
  const double work = static_cast<double>(plan.flops_per_launch);
  card(out, work < 1e9 ? fmt::format("{:.1f} MFLOP", work / 1e6) : fmt::format("{:.1f} GFLOP", work / 1e9),
       "work a micro-batch");
  out += "</div>\n";
  const double over = peak - static_cast<double>(plan.bytes.lower_bound);
  out += fmt::format(
      "<p>Training this model takes one block of memory, the <b>arena</b>, of {} bytes. It is allocated "
      "once, before the first launch; everything has a fixed place in it. ",
      count_text(plan.bytes.peak));
  out += over == 0 ? "This is proven to be the least for these kernels, those that run again included, in "
                     "this order.</p>\n"
                   : fmt::format(
                         "The proven least for these kernels, those that run again included, in this order "
                         "is {} less.</p>\n",
                         percent(over / peak));
  if (const std::string predictions = predictions_text(plan); !predictions.empty())
    out += fmt::format("<p>Predictions: {}.</p>\n", predictions);
  return out;
}

std::string categories(const Plan& plan) {
  const PlanBytes& bytes = plan.bytes;
  struct Part {
    Category category;
    int64_t bytes;
    std::string_view what;
  };
  const Part parts[] = {
      {Category::weights, bytes.weights, "what is trained"},
      {Category::half_weights, bytes.half_weights, "copies of the weights in half precision"},
      {Category::gradients, bytes.gradients,
       "sums over the micro-batches of an update, of gradients and loss"},
      {Category::optimizer, bytes.optimizer, "the optimizer's moments, counters and rates"},
      {Category::inputs, bytes.inputs, "the micro-batch"},
      {Category::activations, bytes.activations, "results of layers, kept for the backward pass"},
      {Category::workspace, bytes.workspace, "gradients in flight and other intermediate results"}};
  std::string out =
      "<h2>What the memory is for</h2>\n<p>The arena at its fullest moment, by kind. The first kinds stay "
      "for the whole training; the last three depend on the size of the micro-batch.</p>\n<div "
      "class=\"bar\">";
  const double peak = static_cast<double>(std::max<int64_t>(bytes.peak, 1));
  int64_t rest = bytes.peak;
  for (const Part& part : parts) {
    rest -= part.bytes;
    if (part.bytes > 0)
      out += fmt::format("<div style=\"width:{:.3f}%;background:{}\" title=\"{} {}\"></div>",
                         100 * static_cast<double>(part.bytes) / peak, colour(part.category),
                         category_text(part.category), ir::short_size_text(part.bytes));
  }
  out +=
      "</div>\n<table><tr><th>kind</th><th>what it is</th><th class=\"n\">memory</th><th "
      "class=\"n\">bytes</th><th class=\"n\">share</th></tr>\n";
  for (const Part& part : parts) {
    if (part.bytes == 0) continue;
    out += fmt::format(
        "<tr><td><i style=\"background:{}\"></i>{}</td><td>{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        colour(part.category), category_text(part.category), part.what, ir::short_size_text(part.bytes),
        count_text(part.bytes), percent(static_cast<double>(part.bytes) / peak));
  }
  out += fmt::format(
      "<tr><td><i class=\"gap\"></i>rounding</td><td>places begin at multiples of 256 bytes; gaps</td><td "
      "class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n<tr "
      "class=\"sum\"><td>peak</td><td></td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
      "class=\"n\"></td></tr>\n</table>\n",
      ir::short_size_text(rest), count_text(rest), percent(static_cast<double>(rest) / peak),
      ir::short_size_text(bytes.peak), count_text(bytes.peak));
  return out;
}

}  // namespace

std::string report_page(const ir::Module& module, const Plan& plan, const passes::RecomputeReport& recompute,
                        const std::vector<passes::TradeOff>& curve) {
  const MemoryMap map = memory_map(module);
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta "
      "charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"/>\n<link rel=\"icon\" href=\"data:,\"/>\n"
      "<title>{}: memory plan</title>\n<style>{}</style>\n</head>\n<body>\n",
      escaped(plan.model), kStyle);
  out += header(plan) + categories(plan);
  if (!map.empty()) {
    out += "<h2>Memory over time</h2>\n" + timeline_html(map);
    out += fmt::format(
        "<h2>The fullest moment</h2>\n<p>The arena must be as large as this moment needs: {}. These values "
        "are alive then.</p>\n",
        escaped(peak_sentence(map)));
    out += peak_html(map);
    out +=
        "<h2>Where everything lies</h2>\n<p>Every rectangle is a tensor: as high as it is large, at its "
        "place in the arena, for as long as it is needed. Rectangles never overlap; a place that is free "
        "again is used again.</p>\n" +
        arena_html(map);
    out +=
        "<h2>The step, layer by layer</h2>\n<p>One box is one kernel, a program that the device runs. The "
        "forward pass goes down the left side, the backward pass comes up the right side; an arrow says how "
        "much memory the layer's results hold until its backward kernels have used them. A layer without a "
        "box runs inside the kernel of a neighbour.</p>\n" +
        step_graph_html(map);
  }
  out += kernels_html(kernel_costs(module));
  out += recompute_html(recompute, curve, plan.bytes.peak);
  return out + "</body>\n</html>\n";
}

}  // namespace gacc::report
