// Low-rank adapters (LoRA): what `lora` of a layer and [lora] say, and the products that they add.
#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

namespace {

// Returns the pattern that takes a layer in all copies of its block: "h.*.attn" of "h.3.attn".
std::string pattern_of(std::string_view path) {
  std::string pattern;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    pattern += part.find_first_not_of("0123456789") == part.npos ? "*" : part;
    if (end < path.size()) pattern += '.';
    begin = end + 1;
  }
  return pattern;
}

// Lists layers for an error, those of a repeated block once.
std::string those_there(const Words& names) {
  constexpr size_t kMost = 8;
  std::vector<std::string> patterns;
  for (const std::string_view name : names)
    if (std::string one = pattern_of(name); std::ranges::count(patterns, one) == 0)
      patterns.push_back(std::move(one));
  if (patterns.empty()) return "; the model has none";
  const size_t more = patterns.size() - std::min(patterns.size(), kMost);
  patterns.resize(patterns.size() - more);
  return fmt::format(
      "; there are `{}`{}. `lora.on` chooses the products of an attention layer, as [\"q\", \"v\"]",
      fmt::join(patterns, "`, `"), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

bool adapts(const Values& lora, std::string_view product) {
  const ir::Texts on = lora.get<ir::Texts>("on");
  return on.empty() ? product == "qkv" : std::ranges::count(on, product) > 0;
}

void check_adapting(const Values& lora, Diag& diag) {
  if (lora.given("on") && lora["on"].good && lora.nodes("on").empty())
    diag.error(Kind::out_of_range, lora.at("on"), "`on` is empty: it says which products are adapted");
  if (adapts(lora, "qkv") && (adapts(lora, "q") || adapts(lora, "k") || adapts(lora, "v")))
    diag.error(Kind::conflict, lora.at("on"),
               "\"qkv\" adapts \"q\", \"k\" and \"v\" together; list it alone");
}

bool adapts(const std::vector<LayerSpec>& layers) {
  return std::ranges::any_of(layers, [](const LayerSpec& layer) {
    return layer.keys.find("lora") != nullptr ||
           std::ranges::any_of(layer.bodies, [](const auto& body) { return adapts(body); });
  });
}

// Each pattern of [lora] must name a layer that can be adapted.
void LayerLowering::check_adapted() const {
  const Values* lora = model.file.find("lora");
  if (lora == nullptr || diag_.failed()) return;
  Words names;
  for (const Lowered& layer : done_)
    if (layer.spec->keys.lists("lora")) names.push_back(layer.path);
  for (const Node& pattern : lora->nodes("match")) {
    const auto named = [&](std::string_view name) { return matches_glob(pattern.text, std::string(name)); };
    if (std::ranges::any_of(names, named)) continue;
    const std::string near = did_you_mean(pattern.text, names);
    diag_.error(Kind::unknown_name, pattern.at, "no linear or attention layer is named `{}`{}", pattern.text,
                near.empty() ? those_there(names) : near);
  }
}

const Values* LayerContext::adapting() const {
  if (const Values* own = keys.find("lora")) return own;
  const Values* lora = model.file["lora"].good ? model.file.find("lora") : nullptr;
  const auto named = [&](const Node& pattern) { return matches_glob(pattern.text, path); };
  return lora != nullptr && std::ranges::any_of(lora->nodes("match"), named) ? lora : nullptr;
}

ir::ValueId LayerContext::adapter(const Values& by, const std::string& name, ir::ValueId x, int64_t out,
                                  std::string weight, int64_t begin) {
  KeyValue standard_start;
  standard_start.value = std::string("default");
  const int64_t in = b.type(x).shape.back(), rank = by.integer("rank");
  const double alpha = by.has("alpha") ? by.real("alpha") : static_cast<double>(rank);
  const auto parameter = [&](std::string_view suffix, ir::Shape shape, Parameters::Standard start) {
    return layers.parameters.get(name + std::string(suffix), std::move(shape), standard_start, start,
                                 {in, out},
                                 /*trainable=*/true, spec.keys.type_at);
  };
  const ir::BufferId a = parameter(".lora_A.weight", {rank, in}, Parameters::Standard::spread);
  const ir::BufferId second = parameter(".lora_B.weight", {out, rank}, Parameters::Standard::zeros);
  if (training()) b.module().settings.adapters.push_back({name, std::move(weight), begin, alpha});
  const double scale = alpha / static_cast<double>(rank);
  ir::ValueId y = b.make("matmul", name + ".lora_A", {x, a}, {{"tb", true}});
  if (scale != 1) y = b.make("mul", name + ".lora_A.scaled", {y, scale});
  return b.make("matmul", name + ".lora_B", {y, second}, {{"tb", true}});
}

}  // namespace gacc::frontend
