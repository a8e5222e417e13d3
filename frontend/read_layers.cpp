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

void set(Node& table, const Entry& entry) {
  if (Node* found = table.find(entry.key))
    *found = entry.value;
  else
    table.entries.push_back(entry);
}

// Sets a key in all of these layers whose type has it, and in those inside of them; returns how many there are.
size_t set_everywhere(Node& layers, const Entry& entry) {
  size_t found = 0;
  for (Node& layer : layers.items) {
    const Node* type = layer.find("type");
    const auto has_key = [&](const LayerType* each) {
      return type != nullptr && each->schema.name == type->text &&
             find_key(each->schema.keys, entry.key) != nullptr;
    };
    if (std::ranges::any_of(all_layers(), has_key)) {
      set(layer, entry);
      ++found;
    }
    if (Node* inner = layer.find("layers"); inner != nullptr && inner->is_list())
      found += set_everywhere(*inner, entry);
  }
  return found;
}

// Puts what a table of a pattern says over the layers of a body. A key "a.b" is the key b of a.
void apply_pattern(Node& layers, const Node& table, Diag& diag) {
  const std::vector<std::string> names = layer_names(layers);
  const Words words(names.begin(), names.end());
  for (const Entry& entry : table.entries) {
    const size_t dot = std::min(entry.key.find('.'), entry.key.size());
    const bool dotted = dot < entry.key.size();
    const std::string head = entry.key.substr(0, dot);
    const auto named = std::ranges::find(names, head);
    if (named == names.end() || !(dotted || entry.value.is_table())) {
      if (!dotted && set_everywhere(layers, entry) > 0) continue;
      diag.error(Kind::unknown_name, entry.key_at,
                 "`{}` in a pattern names no layer of the block and is no key of one; its layers are {}{}",
                 head, list_words(words), did_you_mean(head, words));
      continue;
    }
    Node inner = entry.value;
    if (dotted) {
      inner = {.at = entry.value.at, .entries = {}};
      inner.entries.push_back({entry.key.substr(dot + 1), entry.key_at, entry.value});
    }
    Node& layer = layers.items[static_cast<size_t>(named - names.begin())];
    Node* within = layer.find("layers");
    const std::vector<std::string> inside =
        within != nullptr && within->is_list() ? layer_names(*within) : std::vector<std::string>();
    for (const Entry& own : inner.entries) {
      const std::string first = own.key.substr(0, own.key.find('.'));
      const bool names_layer = own.value.is_table() && std::ranges::count(inside, first) > 0;
      if (!inside.empty() && (first != own.key || names_layer)) {
        Node one{.at = own.value.at, .entries = {}};
        one.entries.push_back(own);
        apply_pattern(*within, one, diag);
      } else if (own.key == "type" || own.key == "name" || own.key == "layers" || own.key == "repeat") {
        diag.error(Kind::conflict, own.key_at, "a pattern does not change the `{}` of a layer", own.key);
      } else {
        set(layer, own);
      }
    }
  }
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
  if (!layer.type->block) return layer;
  if (!keys["layers"].good) {
    layer.bodies.emplace_back();
    return layer;
  }
  const Node& inner = *keys["layers"].node;
  if (inner.items.empty())
    diag.error(Kind::missing_key, inner.at, "a layer of type \"{}\" needs layers in it", keys.type->name);
  const std::span<const Node> pattern =
      keys.lists("pattern") ? keys.nodes("pattern") : std::span<const Node>();
  if (pattern.empty()) layer.bodies.push_back(read_list(inner, {}, diag));
  // The first of the tables that share a mistake tells it.
  const size_t read = diag.reports().size();
  for (size_t i = 0; i < pattern.size() && diag.reports().size() == read; ++i) {
    auto made = std::make_shared<Node>(inner);
    apply_pattern(*made, pattern[i], diag);
    layer.bodies.push_back(read_list(*made, {}, diag));
    layer.made.push_back(std::move(made));
  }
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
