#include <algorithm>
#include <functional>

#include "compiler/plan/show.h"
#include "ir/text/size_text.h"
#include "tools/report/markup.h"
#include "tools/report/sections.h"

namespace gacc::report {

namespace {

using passes::RecomputeReport;
using passes::Remade;
using passes::TradeOff;

constexpr double kWidth = 1160, kHeight = 300, kLeft = 74, kRight = 20, kTop = 30, kBottom = 42;
constexpr size_t kShown = 30;  // values of the table

std::string seconds_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} µs", seconds * 1e6) : fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string table(const RecomputeReport& report) {
  std::vector<const Remade*> rows;
  for (const Remade& value : report.values) rows.push_back(&value);
  std::ranges::stable_sort(rows, std::greater{}, &Remade::bytes);
  std::string out =
      "<table><tr><th>value made again</th><th class=\"n\">times</th><th class=\"n\">its memory</th><th "
      "class=\"n\">MFLOP</th><th class=\"n\">time, by the model</th><th class=\"n\">of the step</th></tr>\n";
  const auto share = [&](double seconds) {
    return percent(report.base_seconds > 0 ? seconds / report.base_seconds : 0);
  };
  Remade rest;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Remade& row = *rows[i];
    if (i >= kShown) {
      rest.bytes += row.bytes;
      rest.flops += row.flops;
      rest.seconds += row.seconds;
      continue;
    }
    out += fmt::format(
        "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.3f}</td><td "
        "class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        escaped(shortened(row.value, 60)), row.times,
        row.bytes > 0 ? ir::short_size_text(row.bytes) : "in registers", static_cast<double>(row.flops) / 1e6,
        row.seconds > 0 ? seconds_text(row.seconds) : "with another",
        row.seconds > 0 ? share(row.seconds) : "");
  }
  if (rows.size() > kShown)
    out += fmt::format(
        "<tr><td>{} others</td><td></td><td class=\"n\">{}</td><td class=\"n\">{:.3f}</td><td "
        "class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        rows.size() - kShown, ir::short_size_text(rest.bytes), static_cast<double>(rest.flops) / 1e6,
        seconds_text(rest.seconds), share(rest.seconds));
  return out + "</table>\n";
}

std::string curve_picture(const std::vector<TradeOff>& curve, int64_t arena, double overhead) {
  const int64_t least = std::min(curve.front().arena, arena), most = std::max(curve.back().arena, arena);
  double top = std::max(overhead, 0.01);
  for (const TradeOff& point : curve) top = std::max(top, point.overhead);
  top *= 1.1;
  const double bottom = kTop + kHeight;
  const auto x = [&](int64_t bytes) {
    const double span = static_cast<double>(std::max<int64_t>(most - least, 1));
    return kLeft + 20 + (kWidth - kLeft - kRight - 40) * static_cast<double>(bytes - least) / span;
  };
  const auto y = [&](double fraction) { return bottom - kHeight * std::max(0.0, fraction) / top; };
  Svg svg(kWidth, bottom + kBottom, "memory against time");
  double step = 0.001;
  for (const double times : {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}) {
    step = 0.001 * times;
    if (top / step <= 6) break;
  }
  for (double at = 0; at <= top; at += step) {
    svg.line(kLeft, y(at), kWidth - kRight, y(at), "class=\"g\"");
    svg.text(kLeft - 6, y(at) + 4, "+" + percent(at), "end");
  }
  for (int i = 0; i <= 4; ++i) {
    const int64_t bytes = least + (most - least) / 4 * i;
    svg.text(x(bytes), bottom + 16, ir::short_size_text(bytes), "middle");
  }
  svg.text((kLeft + kWidth) / 2, bottom + 36, "size of the arena →", "middle");
  svg.text(kLeft, kTop - 12, "↑ more time for a step", "start");
  std::string plans, bounds, between;
  for (const TradeOff& point : curve) {
    plans +=
        fmt::format("{}{} {}", plans.empty() ? "M" : "L", number(x(point.arena)), number(y(point.overhead)));
    bounds += fmt::format("{}{} {}", bounds.empty() ? "M" : "L", number(x(point.arena)),
                          number(y(point.lower_bound)));
    between = fmt::format("L{} {}", number(x(point.arena)), number(y(point.lower_bound))) + between;
  }
  svg.path(plans + between + "Z", "fill=\"#f2a13c\" fill-opacity=\"0.25\"");
  svg.path(bounds, "fill=\"none\" stroke=\"#888\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"");
  svg.path(plans, "fill=\"none\" stroke=\"#4c78a8\" stroke-width=\"2.5\"");
  for (const TradeOff& point : curve)
    svg.rect(x(point.arena) - 3.5, y(point.overhead) - 3.5, 7, 7, "class=\"k\" fill=\"#4c78a8\"",
             fmt::format("a budget of {} bytes: an arena of {} ({} bytes), {:.2f} % more time; no plan in "
                         "that budget can do with less than {:.2f} %",
                         count_text(point.budget), ir::short_size_text(point.arena), count_text(point.arena),
                         100 * point.overhead, 100 * point.lower_bound));
  svg.path(fmt::format("M{} {}l7 -7l-7 -7l-7 7z", number(x(arena)), number(y(overhead) + 7)),
           "fill=\"#d62728\"",
           fmt::format("this plan: {}, {} more time", ir::short_size_text(arena), percent(overhead)));
  const bool right = x(arena) > kWidth / 2;
  svg.text(x(arena) + (right ? -12 : 12), y(overhead) - 9, "this plan", right ? "end" : "start", "t b");
  return svg.finish();
}

}  // namespace

std::string recompute_html(const RecomputeReport& report, const std::vector<TradeOff>& curve, int64_t arena) {
  std::string out =
      "<h2>What is computed twice</h2>\n<p>A plan may drop results of the forward pass and compute them "
      "again when the backward pass needs them: less memory for more work. ";
  if (report.recomputed_ops == 0) {
    out += fmt::format(
        "This plan does not (its recompute policy is <b>{}</b>): every result is computed once, and kept "
        "until it is no longer needed.</p>\n",
        escaped(report.policy));
  } else {
    out += fmt::format(
        "This plan (policy <b>{}</b>) computes {} operations again, {:.1f} MFLOP a micro-batch more. By the "
        "cost model of the target a step of {} takes {} longer; no plan of this size can do with less than "
        "{}.</p>\n",
        escaped(report.policy), count_text(report.recomputed_ops),
        static_cast<double>(report.extra_flops) / 1e6, seconds_text(report.base_seconds),
        percent(report.overhead), percent(report.overhead_lower_bound));
    out += table(report);
  }
  if (curve.size() < 2) return out;
  out +=
      "<p>What other budgets would cost: every blue square is the plan that gacc gives for one, at the size "
      "of its arena. No plan in that budget can lie below the dashed line (that is proven), so the orange "
      "band is all that could still be gained.</p>\n<p class=\"legend\"><span><i "
      "style=\"background:#4c78a8\"></i>plans found</span> <span><i style=\"background:#f7d09d\"></i>between "
      "them and the bound</span> <span><i style=\"background:#d62728\"></i>this plan</span></p>\n";
  return out + curve_picture(curve, arena, report.overhead);
}

}  // namespace gacc::report
