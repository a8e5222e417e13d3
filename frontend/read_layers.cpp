// Reads [[layers]] by the table of layer types.
#include <map>

#include "frontend/model_file.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {

const std::vector<const LayerType*>& all_layers() {
  static const std::vector<const LayerType*> all = {
#define X(name) &layers::name,
#include "frontend/layers.def"
  };
  return all;
}

namespace {

void check_slope(const Values& keys, Diag& diag) {
  const std::string_view key = keys.lists("fn") ? "fn" : "activation";
  if (!keys.given("slope") || keys.text(key) == "leaky_relu" || !keys[key].good) return;
  diag.error(Kind::conflict, keys.at("slope"), "`slope` is for leaky_relu; the activation here is {}",
             keys.has(key) ? keys.text(key) : "none");
}

void check_inputs(const LayerSpec& layer, Diag& diag) {
  const Values& keys = layer.keys;
  const std::string_view type = layer.type->schema.name;
  const bool several = layer.type->several;
  if (keys.given("input") && keys.given("inputs"))
    diag.error(Kind::conflict, keys.at("inputs"), "a layer has either `input` or `inputs`");
  if (!keys.given("inputs")) {
    if (several) diag.error(Kind::missing_key, keys.type_at, "a layer of type \"{}\" needs `inputs`", type);
  } else if (const size_t count = keys.nodes("inputs").size();
             keys["inputs"].good && (several ? count < 2 : count != 1)) {
    diag.error(Kind::out_of_range, keys.at("inputs"), "a layer of type \"{}\" takes {}, not {}", type,
               several ? "two inputs or more" : "one input", count);
  }
}

void check_starts(const LayerSpec& layer, Diag& diag) {
  const Values& keys = layer.keys;
  const bool biased = layer.type->bias && (!keys.lists("bias") || keys.on("bias"));
  for (const std::string_view key : {"init", "bias_init", "proj_init"}) {
    if (!keys.lists(key)) continue;
    const Values* init = keys.find(key);
    if (init != nullptr && init->given("normal") && init->given("uniform"))
      diag.error(Kind::conflict, keys.at(key), "`{}` is either normal or uniform", key);
    else if (init != nullptr && keys[key].node->entries.empty())
      diag.error(Kind::missing_key, keys.at(key), "`{}` needs `normal` or `uniform`", key);
    const bool there = key == "bias_init" ? biased : layer.type->weight;
    if (there || !keys.given(key)) continue;
    diag.error(Kind::conflict, keys.at(key), "this layer of type \"{}\" has no {} that `{}` could start",
               keys.type->name, key == "init" ? "weight" : "bias", key);
  }
}

// A list is for the copies of a repeated block, one each.
void check_trainable(const Values& keys, Diag& diag) {
  const KeyValue& said = keys["trainable"];
  if (said.node == nullptr || !said.good || !said.node->is_list()) return;
  const size_t found = said.node->items.size();
  const bool repeats = keys.lists("repeat") && keys.has("repeat");
  if (!repeats)
    diag.error(Kind::conflict, said.node->at,
               "`trainable` is a list where a block has `repeat`; here it is true or false");
  else if (static_cast<int64_t>(found) != keys.integer("repeat"))
    diag.error(Kind::out_of_range, said.node->at, "`trainable` has {}, `repeat` makes {} cop{}",
               ir::counted(static_cast<int64_t>(found), "element"), keys.integer("repeat"),
               keys.integer("repeat") == 1 ? "y" : "ies")
        .note(keys.at("repeat"), "the copies are counted here");
}

std::vector<LayerSpec> read_list(const Node& list, std::map<std::string, Location> taken, Diag& diag);

LayerSpec read_layer(const Node& node, const std::string& name, Diag& diag) {
  LayerSpec layer{.keys = read_table(node, tables::layer, diag, "a layer", ""), .name = name};
  const Values& keys = layer.keys;
  layer.name_at = keys.given("name") ? keys.at("name") : keys.type_at;
  if (keys.has("name") && !is_name(keys.text("name")))
    diag.error(Kind::out_of_range, layer.name_at,
               "a layer's name has 1 to {} characters, no dots and no control characters", kMaxNameLength);
  layer.valid = keys.type != nullptr;
  if (!layer.valid) return layer;
  layer.type = &type_with(all_layers(), *keys.type);
  const size_t before = diag.reports().size();
  check_inputs(layer, diag);
  if (keys.lists("slope")) check_slope(keys, diag);
  if (const Values* lora = keys.find("lora")) check_adapting(*lora, diag);
  if (layer.type->check != nullptr) layer.type->check(keys, diag);
  // Keys that say nothing about the output may be wrong, and later layers can still be checked.
  layer.valid = diag.reports().size() == before;
  for (const KeyValue& value : keys.values) {
    const bool own = find_key(tables::layer.keys, value.key->name) == nullptr;
    if (own || value.key->name.starts_with("input")) layer.valid &= value.good;
  }
  check_starts(layer, diag);
  check_trainable(keys, diag);
  if (!layer.type->block || !keys["layers"].good) return layer;
  const Node& inner = *keys["layers"].node;
  if (inner.items.empty())
    diag.error(Kind::missing_key, inner.at, "a layer of type \"{}\" needs layers in it", keys.type->name);
  layer.layers = read_list(inner, {}, diag);
  return layer;
}

// `taken` holds names that layers of this scope may not have: the inputs, at the top level.
std::vector<LayerSpec> read_list(const Node& list, std::map<std::string, Location> taken, Diag& diag) {
  std::vector<LayerSpec> layers;
  const std::vector<std::string> names = layer_names(list);
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (!list.items[i].is_table()) continue;  // reported
    LayerSpec& layer = layers.emplace_back(read_layer(list.items[i], names[i], diag));
    const auto [first, fresh] = taken.emplace(layer.name, layer.name_at);
    if (fresh || layer.name.empty()) continue;
    diag.error(Kind::duplicate_name, layer.name_at, "the name `{}` is taken", layer.name)
        .note(first->second, "it is first used here");
    layer.type = nullptr;  // its parameters would be those of its namesake
    layer.valid = false;
  }
  return layers;
}

}  // namespace

std::vector<LayerSpec> read_layers(const Node& list, const std::vector<InputSpec>& inputs, Diag& diag) {
  std::map<std::string, Location> taken;
  for (const InputSpec& input : inputs) taken.emplace(input.name, input.at);
  return read_list(list, std::move(taken), diag);
}

}  // namespace gacc::frontend
