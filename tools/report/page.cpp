// Puts the plan into page.html, which draws it; completes the plan for that.
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/report/memory_map.h"
#include "tools/report/page_html.h"
#include "tools/report/report.h"

namespace gacc::report {

namespace {

using Json = nlohmann::ordered_json;

Json holding_json(const Holding& value) {
  return {{"name", value.name},     {"type", value.type},
          {"layer", value.layer},   {"category", category_text(value.category)},
          {"offset", value.offset}, {"bytes", value.bytes},
          {"first", value.first},   {"last", value.last}};
}

Json region_json(const RegionMap& region) {
  constexpr std::string_view kRoles[] = {"forward", "backward", "made again", ""};  // in the order of Role
  Json kernels = Json::array(), values = Json::array();
  for (const KernelRow& row : region.kernels)
    kernels.push_back({{"name", row.label},
                       {"layer", row.layer},
                       {"role", kRoles[static_cast<size_t>(row.role)]},
                       {"flops", row.flops},
                       {"live", row.live},
                       {"value_bytes", row.live_bytes}});
  for (const Holding& value : region.values) values.push_back(holding_json(value));
  return {{"name", ir::region_text(region.kind)},
          {"title", region_name(region.kind)},
          {"layers", region.layers},
          {"kernels", std::move(kernels)},
          {"values", std::move(values)}};
}

Json memory_json(const MemoryMap& map) {
  Json categories = Json::array(), buffers = Json::array(), regions = Json::array();
  for (size_t c = 0; c < kCategories; ++c) {
    const auto category = static_cast<Category>(c);
    categories.push_back(
        {{"name", category_text(category)}, {"stays", stays(category)}, {"bytes", map.always[c]}});
  }
  for (const Holding& buffer : map.buffers) buffers.push_back(holding_json(buffer));
  for (const RegionMap& region : map.regions) regions.push_back(region_json(region));
  Json peak = {{"region", map.peak_region}, {"kernel", map.peak_kernel}};
  peak["alive"] = map.empty() ? std::vector<size_t>() : map.peak().held;
  return {{"arena", map.arena},
          {"buffers_end", map.buffers_end},
          {"categories", std::move(categories)},
          {"buffers", std::move(buffers)},
          {"regions", std::move(regions)},
          {"peak", std::move(peak)}};
}

}  // namespace

void add_memory(Json& plan, const ir::Module& module, const passes::RecomputeReport& recompute,
                const std::vector<passes::TradeOff>& trade_off) {
  plan["memory"] = memory_json(memory_map(module));
  plan["recompute"]["base_seconds"] = recompute.base_seconds;
  Json& values = plan["recompute"]["values"] = Json::array();
  for (const passes::Remade& value : recompute.values)
    values.push_back({{"value", value.value},
                      {"times", value.times},
                      {"bytes", value.bytes},
                      {"flops", value.flops},
                      {"seconds", value.seconds}});
  Json& points = plan["trade_off"] = Json::array();
  for (const passes::TradeOff& point : trade_off)
    points.push_back({{"budget", point.budget},
                      {"arena", point.arena},
                      {"overhead", point.overhead},
                      {"lower_bound", point.lower_bound}});
}

std::string page(const Json& plan) {
  constexpr std::string_view kMark = "{{plan}}";
  std::string text;
  for (const char c : plan.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<')
      text += "\\u003c";  // no text of the model ends the script
    else
      text += c;
  }
  std::string html(kPageHtml);
  return html.replace(html.find(kMark), kMark.size(), text);
}

}  // namespace gacc::report
