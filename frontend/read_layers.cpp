// Reads [[layers]]: one table of layer types says which keys each has and how they are read.
#include <algorithm>
#include <map>

#include "frontend/model_file.h"
#include "frontend/overrides.h"
#include "frontend/schema.h"

namespace gacc::frontend {

namespace {

constexpr size_t kMaxRank = 8;
constexpr int kMaxNesting = 24;

constexpr std::string_view kActivations[] = {"relu",    "gelu", "gelu_tanh", "silu",
                                             "sigmoid", "tanh", "leaky_relu"};

using ReadKeys = void (*)(TableReader& table, LayerSpec& layer);

// `activation` and the slope that goes with leaky_relu.
void read_activation(TableReader& table, LayerSpec& layer, std::string_view key) {
  layer.activation = table.choice(key, "activation", kActivations).value_or("");
  if (const auto slope = table.real("slope", any_number)) {
    layer.slope = *slope;
    if (layer.activation != "leaky_relu" && !layer.activation.empty()) {
      table.diag().error(Kind::conflict, table.at("slope"),
                         "`slope` is for leaky_relu; the activation here is {}", layer.activation);
    }
  }
}

void read_linear(TableReader& table, LayerSpec& layer) {
  if (table.require("features")) layer.features = table.integer("features", extent).value_or(0);
  layer.features_at = table.at("features");
  layer.bias = table.flag("bias").value_or(true);
  if (const auto tied = table.text("tied")) {
    layer.tied = Named{*tied, table.at("tied")};
    if (table.find("init") != nullptr) {
      table.diag().error(Kind::conflict, table.at("init"),
                         "a tied weight starts as its owner does; set `init` at `{}`", *tied);
    }
  }
  read_activation(table, layer, "activation");
}

void read_fn(TableReader& table, LayerSpec& layer) {
  table.require("fn");
  read_activation(table, layer, "fn");
}

void read_shape(TableReader& table, LayerSpec& layer) {
  if (table.require("shape")) layer.shape = table.integers("shape", extent, kMaxRank).value_or(ir::Shape{});
  layer.shape_at = table.at("shape");
}

void read_eps(TableReader& table, LayerSpec& layer) {
  layer.eps = table.real("eps", above(0)).value_or(1e-5);
}

void read_dropout(TableReader& table, LayerSpec& layer) {
  if (table.require("p")) layer.p = table.real("p", below_one).value_or(0);
}

void read_permute(TableReader& table, LayerSpec& layer) {
  if (!table.require("axes")) return;
  layer.axes_at = table.at("axes");
  const auto axes = table.integers("axes", between(0, kMaxRank - 1), kMaxRank);
  if (!axes) return;
  std::vector<int64_t> sorted = *axes;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] == static_cast<int64_t>(i)) continue;
    table.diag().error(Kind::out_of_range, table.at("axes"), "`axes` must name each axis from 0 to {} once",
                       sorted.size() - 1);
    return;
  }
  layer.axes = *axes;
}

// A number, or two along height and width. False when the key is not there.
bool read_pair(TableReader& table, std::string_view key, Range range, int64_t (&into)[2]) {
  const Node* node = table.find(key);
  if (node == nullptr) return false;
  if (!node->is_list()) {
    if (const auto both = table.integer(key, range)) into[0] = into[1] = *both;
  } else if (const auto pair = table.integers(key, range, 2); pair && pair->size() != 2) {
    table.diag().error(Kind::out_of_range, node->at, "`{}` must be one number or two", key);
  } else if (pair) {
    std::copy(pair->begin(), pair->end(), into);
  }
  return true;
}

constexpr double kLargestWindow = 32767;  // kernels compute places within an image in 32 bits
constexpr Range window_extent = between(1, kLargestWindow), window_padding = between(0, kLargestWindow);

void read_conv(TableReader& table, LayerSpec& layer) {
  WindowSpec& w = layer.window;
  if (table.require("channels")) w.channels = table.integer("channels", extent).value_or(1);
  w.channels_at = table.at("channels");
  if (table.require("kernel")) read_pair(table, "kernel", window_extent, w.kernel);
  w.kernel_at = table.at("kernel");
  read_pair(table, "stride", window_extent, w.stride);
  read_pair(table, "dilation", window_extent, w.dilation);
  const Node* pad = table.find("padding");
  if (pad != nullptr && pad->form == Node::Form::text) {
    static constexpr std::string_view words[] = {"same"};
    w.same = table.choice(*pad, "padding", words).has_value();
    if (w.same && (w.stride[0] != 1 || w.stride[1] != 1)) {
      table.diag().error(
          Kind::conflict, table.at("stride"),
          "`padding` = \"same\" goes with a stride of 1; with another one write the padding out");
    }
  } else {
    read_pair(table, "padding", window_padding, w.padding);
  }
  w.groups = table.integer("groups", extent).value_or(1);
  w.groups_at = table.at("groups");
  if (w.channels % w.groups != 0) {
    table.diag().error(Kind::out_of_range, table.at("groups"), "{} channels do not divide into {} groups",
                       w.channels, w.groups);
  }
  layer.bias = table.flag("bias").value_or(true);
  read_activation(table, layer, "activation");
}

void read_pool(TableReader& table, LayerSpec& layer) {
  WindowSpec& w = layer.window;
  if (table.require("kernel")) read_pair(table, "kernel", window_extent, w.kernel);
  w.kernel_at = table.at("kernel");
  if (!read_pair(table, "stride", window_extent, w.stride)) std::copy(w.kernel, w.kernel + 2, w.stride);
  read_pair(table, "padding", window_padding, w.padding);
  for (int axis = 0; axis < 2; ++axis) {
    if (2 * w.padding[axis] <= w.kernel[axis]) continue;
    table.diag().error(Kind::out_of_range, table.at("padding"),
                       "`padding` must be at most half of `kernel`: {} of {}", w.padding[axis],
                       w.kernel[axis]);
    break;
  }
}

void read_batch_norm(TableReader& table, LayerSpec& layer) {
  layer.momentum = table.real("momentum", fraction).value_or(0.1);
  static constexpr std::string_view words[] = {"micro", "compensate"};
  layer.compensate = table.choice("accumulation", "accumulation", words).value_or("micro") == "compensate";
  read_eps(table, layer);
}

void read_group_norm(TableReader& table, LayerSpec& layer) {
  if (table.require("groups")) layer.window.groups = table.integer("groups", extent).value_or(1);
  layer.window.groups_at = table.at("groups");
  read_eps(table, layer);
}

void read_embedding(TableReader& table, LayerSpec& layer) {
  if (table.require("vocab")) layer.vocab = table.integer("vocab", extent).value_or(0);
  if (table.require("features")) layer.features = table.integer("features", extent).value_or(0);
  layer.vocab_at = table.at("vocab");
}

void read_attention(TableReader& table, LayerSpec& layer) {
  if (table.require("heads")) layer.heads = table.integer("heads", extent).value_or(1);
  layer.heads_at = table.at("heads");
  layer.causal = table.flag("causal").value_or(false);
  layer.bias = table.flag("bias").value_or(true);
  layer.p = table.real("dropout", below_one).value_or(0);
}

void read_concat(TableReader& table, LayerSpec& layer) {
  if (table.require("axis")) layer.axes = {table.integer("axis", between(0, kMaxRank - 1)).value_or(0)};
  layer.axes_at = table.at("axis");
}

void read_repeat(TableReader& table, LayerSpec& layer) {
  layer.repeat = table.integer("repeat", extent);
  layer.repeat_at = table.at("repeat");
}

void no_keys(TableReader&, LayerSpec&) {}

struct LayerType {
  std::string_view name;
  LayerKind kind;
  ReadKeys keys;
  bool weight = false;  // has parameters that `init` / `bias_init` start
  bool bias = false;
  bool needs_inputs = false;
  bool container = false;
};

constexpr LayerType kTypes[] = {
    {"linear", LayerKind::linear, read_linear, true, true},
    {"activation", LayerKind::activation, read_fn},
    {"softmax", LayerKind::softmax, no_keys},
    {"log_softmax", LayerKind::log_softmax, no_keys},
    {"flatten", LayerKind::flatten, no_keys},
    {"reshape", LayerKind::reshape, read_shape},
    {"permute", LayerKind::permute, read_permute},
    {"dropout", LayerKind::dropout, read_dropout},
    {"conv2d", LayerKind::conv2d, read_conv, true, true},
    {"max_pool2d", LayerKind::pool2d, read_pool},
    {"avg_pool2d", LayerKind::pool2d, read_pool},
    {"global_avg_pool2d", LayerKind::global_avg_pool2d, no_keys},
    {"batch_norm", LayerKind::batch_norm, read_batch_norm, true, true},
    {"layer_norm", LayerKind::layer_norm, read_eps, true, true},
    {"rms_norm", LayerKind::rms_norm, read_eps, true},
    {"group_norm", LayerKind::group_norm, read_group_norm, true, true},
    {"embedding", LayerKind::embedding, read_embedding, true},
    {"position_embedding", LayerKind::position_embedding, no_keys, true},
    {"attention", LayerKind::attention, read_attention, true, true},
    {"add", LayerKind::add, no_keys, false, false, true},
    {"mul", LayerKind::mul, no_keys, false, false, true},
    {"concat", LayerKind::concat, read_concat, false, false, true},
    {"sequential", LayerKind::sequential, read_repeat, false, false, false, true},
    {"residual", LayerKind::residual, no_keys, false, false, false, true},
};

// A word, or { normal = s } / { uniform = a }.
InitSpec read_init(TableReader& table, std::string_view key) {
  InitSpec init{.at = table.at(key)};
  const Node* node = table.find(key);
  if (node == nullptr) return init;
  using Form = InitSpec::Form;
  static constexpr std::string_view words[] = {
      "default", "zeros", "ones", "kaiming_normal", "kaiming_uniform", "xavier_normal", "xavier_uniform"};
  static constexpr Form forms[] = {Form::standard,       Form::zeros,           Form::ones,
                                   Form::kaiming_normal, Form::kaiming_uniform, Form::xavier_normal,
                                   Form::xavier_uniform};
  if (node->form == Node::Form::text) {
    const auto word = table.choice(*node, "initialiser", words);
    if (word) init.form = forms[std::find(std::begin(words), std::end(words), *word) - std::begin(words)];
  } else if (node->is_table()) {
    TableReader inner(*node, fmt::format("`{}`", key), fmt::format("{}.", key), table.diag());
    const Node *normal = inner.find("normal"), *uniform = inner.find("uniform");
    if (normal != nullptr && uniform != nullptr) {
      table.diag().error(Kind::conflict, node->at, "`{}` is either normal or uniform", key);
    } else if (normal == nullptr && uniform == nullptr && node->entries.empty()) {
      table.diag().error(Kind::missing_key, node->at, "`{}` needs `normal` or `uniform`", key);
    }
    init.form = uniform != nullptr ? Form::uniform : Form::normal;
    const auto amount = inner.real(uniform != nullptr ? "uniform" : "normal", at_least(0));
    init.amount = amount.value_or(0);
    inner.finish();
  } else {
    table.diag().error(Kind::wrong_type, node->at,
                       "`{}` must be a string or a table such as {{ normal = 0.02 }}, not {}", key,
                       form_text(node->form));
  }
  return init;
}

void read_inputs(TableReader& table, LayerSpec& layer, const LayerType& type) {
  const Node *one = table.find("input"), *several = table.find("inputs");
  if (one != nullptr && several != nullptr) {
    table.diag().error(Kind::conflict, several->at, "a layer has either `input` or `inputs`");
  }
  if (const auto name = table.text("input")) layer.inputs.push_back({*name, one->at});
  if (const Node* names = table.list("inputs")) {
    for (const Node& item : names->items) {
      if (table.is(item, "inputs", Node::Form::text)) layer.inputs.push_back({item.text, item.at});
    }
    if (type.needs_inputs ? names->items.size() < 2 : names->items.size() != 1) {
      table.diag().error(Kind::out_of_range, names->at, "a layer of type \"{}\" takes {}, not {}", type.name,
                         type.needs_inputs ? "two inputs or more" : "one input", names->items.size());
    }
  } else if (type.needs_inputs && several == nullptr) {
    table.diag().error(Kind::missing_key, layer.type_at, "a layer of type \"{}\" needs `inputs`", type.name);
  }
}

// Keys that every type has and that leave its output as it is.
void read_common(TableReader& table, LayerSpec& layer, const LayerType& type) {
  Diag& diag = table.diag();
  layer.init = read_init(table, "init");
  layer.bias_init = read_init(table, "bias_init");
  if (table.find("init") != nullptr && !type.weight) {
    diag.error(Kind::conflict, table.at("init"),
               "a layer of type \"{}\" has no weight that `init` could start", type.name);
  }
  if (table.find("bias_init") != nullptr && (!type.bias || !layer.bias)) {
    diag.error(Kind::conflict, table.at("bias_init"),
               "this layer of type \"{}\" has no bias that `bias_init` could start", type.name);
  }
  layer.trainable = table.flag("trainable").value_or(true);
  layer.recompute = table.flag("recompute").value_or(false);
  static constexpr std::string_view precisions[] = {"f32"};
  layer.full = table.choice("precision", "layer precision", precisions).has_value();
}

class LayerReader {
 public:
  explicit LayerReader(Diag& diag) : diag_(diag) {}

  // `taken` holds names that layers of this scope may not have: the inputs, at the top level.
  std::vector<LayerSpec> read_list(const Node& list, std::map<std::string, Location> taken, int depth) {
    std::vector<LayerSpec> layers;
    if (depth > kMaxNesting) {
      diag_.error(Kind::out_of_range, list.at, "layers are nested more than {} deep", kMaxNesting);
      return layers;
    }
    const std::vector<std::string> names = layer_names(list);
    for (size_t i = 0; i < list.items.size(); ++i) {
      const Node& node = list.items[i];
      if (!node.is_table()) {
        diag_.error(Kind::wrong_type, node.at, "`layers` must hold tables, not {}", form_text(node.form));
        continue;
      }
      layers.push_back(read(node, names[i], depth));
      LayerSpec& layer = layers.back();
      const auto [first, fresh] = taken.emplace(layer.name, layer.name_at);
      if (!fresh && !layer.name.empty()) {
        diag_.error(Kind::duplicate_name, layer.name_at, "the name `{}` is taken", layer.name)
            .note(first->second, "it is first used here");
        layer.kind = LayerKind::other;  // its parameters would be those of its namesake
        layer.sound = false;
      }
    }
    return layers;
  }

 private:
  LayerSpec read(const Node& node, const std::string& default_name, int depth) {
    const size_t before = diag_.reports().size();
    LayerSpec layer;
    layer.name = default_name;
    layer.at = node.at;
    const Node* type_node = node.find("type");
    layer.type_at = type_node != nullptr ? type_node->at : node.at;
    layer.name_at = layer.type_at;
    TableReader untyped(node, "a layer", "", diag_);
    const LayerType* type = nullptr;
    if (untyped.require("type")) {
      std::vector<std::string_view> words;
      for (const LayerType& known : kTypes) words.push_back(known.name);
      if (const auto word = untyped.choice("type", "layer type", words)) {
        type = std::find_if(std::begin(kTypes), std::end(kTypes),
                            [&](const LayerType& known) { return known.name == *word; });
        layer.type = *word;
      }
    }
    read_name(untyped, layer);
    if (type == nullptr) {  // nothing is known about the other keys
      layer.sound = false;
      return layer;
    }
    TableReader table(node, fmt::format("a layer of type \"{}\"", type->name), "", diag_);
    table.find("type");
    table.find("name");
    layer.kind = type->kind;
    type->keys(table, layer);
    read_inputs(table, layer, *type);
    // What follows says nothing about the output, so later layers can still be checked.
    layer.sound = diag_.reports().size() == before;
    read_common(table, layer, *type);
    if (type->container && table.require("layers")) {
      if (const Node* inner = table.list("layers")) {
        if (inner->items.empty())
          diag_.error(Kind::missing_key, inner->at, "a layer of type \"{}\" needs layers in it", type->name);
        layer.layers = read_list(*inner, {}, depth + 1);
      }
    }
    if (type->kind == LayerKind::residual && node.find("repeat") != nullptr) {
      table.find("repeat");
      diag_.error(Kind::conflict, table.at("repeat"),
                  "a residual block has no `repeat`; put it into a sequential block that has");
    }
    table.finish();
    return layer;
  }

  void read_name(TableReader& table, LayerSpec& layer) {
    const auto name = table.text("name");
    if (!name) return;
    layer.name_at = table.at("name");
    if (!is_name(*name)) {
      diag_.error(Kind::out_of_range, layer.name_at,
                  "a layer's name has 1 to {} characters, no dots and no control characters", kMaxNameLength);
    }
  }

  Diag& diag_;
};

}  // namespace

std::vector<LayerSpec> read_layers(const Node& list, const std::vector<InputSpec>& inputs, Diag& diag) {
  std::map<std::string, Location> taken;
  for (const InputSpec& input : inputs) taken.emplace(input.name, input.at);
  return LayerReader(diag).read_list(list, std::move(taken), 1);
}

}  // namespace gacc::frontend
