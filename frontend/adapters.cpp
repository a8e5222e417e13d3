// Low-rank adapters (LoRA): what `lora` of a layer and [lora] say, and the products that they add.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

bool Adapting::is_on(std::string_view product) const { return std::ranges::count(on, product) > 0; }

std::optional<Adapting> read_adapting(const Values& table, Diag& diag) {
  if (!table.has("rank") || !table["alpha"].good || !table["on"].good) return std::nullopt;
  Adapting result{.rank = table.integer("rank"), .at = table.place};
  result.alpha = table.has("alpha") ? table.real("alpha") : static_cast<double>(result.rank);
  for (const Node& word : table.nodes("on")) {
    if (result.is_on(word.text))
      diag.error(Kind::duplicate_name, word.at, "\"{}\" is listed twice", word.text);
    result.on.push_back(word.text);
  }
  if (table.given("on") && result.on.empty())
    diag.error(Kind::out_of_range, table.at("on"), "`on` is empty: it says which products are adapted");
  if (result.is_on("qkv") && (result.is_on("q") || result.is_on("k") || result.is_on("v")))
    diag.error(Kind::conflict, table.at("on"),
               "\"qkv\" adapts \"q\", \"k\" and \"v\" together; list it alone");
  if (result.on.empty()) result.on = {"qkv"};
  return result;
}

std::optional<Adapting> adapting_of(const Values& keys, Diag& diag) {
  const Value& lora = keys["lora"];
  if (lora.node == nullptr || !lora.good) return std::nullopt;
  return read_adapting(read_table(*lora.node, schema().lora, diag, "`lora`", "lora"), diag);
}

bool adapts(const std::vector<LayerSpec>& layers) {
  return std::ranges::any_of(layers, [](const LayerSpec& layer) {
    const bool can = layer.keys.type != nullptr && find_key(layer.keys.type->keys, "lora") != nullptr;
    return (can && layer.keys.given("lora")) || adapts(layer.layers);
  });
}

// Each pattern of [lora] must name a layer that can be adapted.
void LayerLowering::check_adapted() const {
  if (!model_.lora || diag_.failed()) return;
  std::vector<std::string_view> names;
  for (const Lowered& layer : done_)
    if (find_key(layer.spec->keys.type->keys, "lora") != nullptr) names.push_back(layer.path);
  for (const Node& pattern : model_.lora->nodes("match")) {
    const auto named = [&](std::string_view name) { return matches_glob(pattern.text, std::string(name)); };
    if (!std::ranges::any_of(names, named))
      diag_.error(Kind::unknown_name, pattern.at, "no linear or attention layer is named `{}`{}",
                  pattern.text, did_you_mean(pattern.text, names));
  }
}

std::optional<Adapting> LayerContext::adapting() {
  if (keys.given("lora")) {
    Diag reported;  // by the layer's check
    return adapting_of(keys, reported);
  }
  if (!model.lora) return std::nullopt;
  for (const Node& pattern : model.lora->nodes("match"))
    if (matches_glob(pattern.text, path)) return model.adapting;
  return std::nullopt;
}

std::optional<ir::ValueId> LayerContext::adapter(const Adapting& by, const std::string& name, ir::ValueId x,
                                                 int64_t out, std::string weight, int64_t begin) {
  static const Value standard_start{.key = nullptr, .value = ir::Attr(std::string("default"))};
  const int64_t in = b.type(x).shape.back();
  const auto parameter = [&](std::string_view suffix, ir::Shape shape, Parameters::Standard start) {
    return all_.parameters_.get(name + std::string(suffix), std::move(shape), standard_start, start,
                                {in, out},
                                /*trainable=*/true, spec.type_at);
  };
  const auto a = parameter(".lora_A.weight", {by.rank, in}, Parameters::Standard::spread);
  if (!a) return std::nullopt;
  const auto second = parameter(".lora_B.weight", {out, by.rank}, Parameters::Standard::zeros);
  if (!second) return std::nullopt;
  if (training()) b.module().settings.adapters.push_back({name, std::move(weight), begin, by.alpha});
  const double scale = by.alpha / static_cast<double>(by.rank);
  ir::ValueId y = b.make("matmul", name + ".lora_A", {x, *a}, {{"tb", true}});
  if (scale != 1) y = b.make("mul", name + ".lora_A.scaled", {y, scale});
  return b.make("matmul", name + ".lora_B", {y, *second}, {{"tb", true}});
}

}  // namespace gacc::frontend
