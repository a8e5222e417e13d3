// Reads a table by its list of keys.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <stdexcept>

#include <fmt/ranges.h>

#include "frontend/key_place.h"
#include "frontend/layer_types.h"
#include "frontend/schema.h"
#include "ir/op_info.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameLength && std::ranges::none_of(text, [](char c) {
    return c == '.' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

Words words_of(const Key& key) {
  Words words = key.words;
  if (key.form == Form::activation)
    for (const ir::OpInfo* op : ir::all_ops())
      if (op->activation) words.push_back(op->name);
  if (key.form == Form::metric) words.push_back("loss");
  if (key.form == Form::metric || key.form == Form::metrics)
    for (const std::string_view metric : metric_names()) words.push_back(metric);
  return words;
}

const KeyValue& Values::operator[](std::string_view key) const {
  const auto found = std::ranges::find(values, key, [](const KeyValue& value) { return value.key->name; });
  if (found != values.end()) return *found;
  throw std::logic_error(fmt::format("the schema of {}{} has no such key", path, key));
}

bool Values::lists(std::string_view key) const {
  return std::ranges::any_of(values, [&](const KeyValue& value) { return value.key->name == key; });
}

const Location& Values::at(std::string_view key) const {
  const Node* node = (*this)[key].node;
  return node != nullptr ? node->at : place;
}

std::span<const Node> Values::nodes(std::string_view key) const {
  const KeyValue& value = (*this)[key];
  if (value.node == nullptr || !value.good) return {};
  return value.node->is_list() ? std::span(value.node->items) : std::span(value.node, 1);
}

const Values* Values::find(std::string_view key) const {
  const bool there = lists(key) && !(*this)[key].tables.empty();
  return there ? &(*this)[key].tables.front() : nullptr;
}

Values Values::table(std::string_view key) const {
  static const Node empty;
  if (const Values* found = find(key)) return *found;
  Diag unreported;
  return read_table(empty, *(*this)[key].key->table, unreported, "", name(key));
}

void Values::store(ir::Settings& settings) const {
  ir::Results none;
  for (const KeyValue& value : values) {
    if (!value.value || value.key->form == Form::table) continue;
    if (value.key->implied && value.value == value.key->fallback.value) continue;
    set(settings, none, name(value.key->name), *value.value);  // not "auto" for a number
  }
}

namespace {

// Returns the number of percent in "3%"; nothing for another text.
std::optional<double> parse_share(std::string_view text) {
  double percent = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), percent);
  const bool good = bad == std::errc{} && std::string_view(end, text.data() + text.size()) == "%";
  return good && percent > 0 && percent < 100 ? std::optional(percent) : std::nullopt;
}

// Names that other tools use for our keys. A word may have several meanings: the first that the table has counts.
struct Foreign {
  std::string_view ours;
  std::vector<std::string_view> words;
  std::string_view write = {};  // where the value is another one, too
};
const std::vector<Foreign> foreign_words = {
    {"features", {"units", "out_features", "filters", "dim", "embedding_dim", "hidden_size"}},
    {"channels", {"filters", "out_channels", "units", "out_features"}},
    {"vocab", {"num_embeddings", "vocab_size"}},
    {"heads", {"num_heads", "n_head"}},
    {"rank", {"r", "lora_rank"}},
    {"alpha", {"lora_alpha"}},
    {"match", {"target_modules"}},
    {"kv_heads", {"num_key_value_heads", "n_kv_head"}},
    {"rope", {"rotary", "rope_theta"}},
    {"theta", {"base", "rope_theta"}},
    {"partial", {"partial_rotary_factor"}},
    {"kernel", {"kernel_size", "pool_size"}},
    {"axis", {"dim"}},
    {"p", {"rate"}},
    {"bias", {"use_bias"}},
    {"trainable", {"requires_grad"}},
    {"trainable", {"frozen"}, "trainable = false"},
    {"betas", {"beta1", "beta2"}, "betas = [0.9, 0.999]"},
    {"micro_batch", {"batch_size", "batch"}},
    {"accumulate", {"gradient_accumulation_steps", "accumulation_steps", "grad_accum"}},
    {"clip_norm",
     {"grad_clip", "gradient_clip", "max_norm", "max_grad_norm", "gradient_clip_val", "clipnorm"}},
    {"epochs", {"num_epochs", "num_train_epochs", "max_epochs", "n_epochs"}},
    {"tail", {"drop_last"}, "tail = \"drop\""},
    {"recompute.policy",
     {"gradient_checkpointing", "activation_checkpointing", "checkpointing", "use_checkpoint"},
     "recompute.policy = \"sqrt\""},
    {"lr", {"learning_rate", "rate"}},
    {"weight_decay", {"wd", "l2", "decay_rate"}},
    {"momentum", {"beta", "mu"}},
    {"eps", {"epsilon", "adam_epsilon"}},
    {"groups", {"no_decay", "param_groups"}, "[[optimizer.groups]]"},
    {"class_weights", {"weight", "weights", "class_weight"}},
    {"total", {"T_max", "total_steps"}},
    {"warmup", {"warmup_steps", "num_warmup_steps"}},
    {"warmup", {"warmup_ratio"}, "warmup = \"3%\""},
    {"min_lr", {"eta_min"}},
    {"milestones", {"boundaries"}},
    {"patience", {"early_stopping_patience"}},
    {"compute", {"amp", "dtype", "precision", "mixed_precision"}},
    {"policy", {"recompute"}},
    {"mode", {"launch"}},
    {"precision.compute", {"fp16"}, "precision.compute = \"f16\""},
    {"precision.compute", {"bf16"}, "precision.compute = \"bf16\""},
    {"seed", {"random_seed"}},
    {"linear", {"dense", "fc", "fully_connected"}},  // types of layers
    {"conv2d", {"conv", "convolution"}},
    {"embedding", {"embed"}},
    {"attention", {"self_attention", "mha", "multihead_attention"}},
};

// Words that other tools use for our values.
constexpr std::pair<std::string_view, std::string_view> kForeignValues[] = {
    {"float16", "f16"},
    {"fp16", "f16"},
    {"half", "f16"},
    {"float", "f32"},
    {"float32", "f32"},
    {"fp32", "f32"},
    {"single", "f32"},
    {"double", "f32"},
    {"float64", "f32"},
    {"bfloat16", "bf16"},
    {"int", "i32"},
    {"int32", "i32"},
    {"int64", "i32"},
    {"long", "i32"},
    {"uint8", "f32"},
    {"bool", "f32"},
    {"swish", "silu"},
    {"q_proj", "q"},
    {"k_proj", "k"},
    {"v_proj", "v"},
    {"o_proj", "proj"},
    {"out_proj", "proj"},
    {"gelu_new", "gelu_tanh"},
    {"gelu_approximate", "gelu_tanh"},
    {"gelu_pytorch_tanh", "gelu_tanh"},
    {"logistic", "sigmoid"},
    {"leakyrelu", "leaky_relu"},
    {"cosine_annealing", "cosine"},
    {"cosineannealinglr", "cosine"},
    {"cosine_with_warmup", "cosine"},
    {"linear_with_warmup", "linear"},
    {"constant_with_warmup", "constant"},
    {"reduce_lr_on_plateau", "plateau"},
    {"reducelronplateau", "plateau"},
    {"steplr", "step"},
    {"step_lr", "step"},
    {"multi_step", "multistep"},
    {"exp", "exponential"},
    {"adamw_torch", "adamw"},
    {"adam_w", "adamw"},
    {"momentum", "sgd"},
    {"nll", "cross_entropy"},
    {"nll_loss", "cross_entropy"},
    {"crossentropy", "cross_entropy"},
    {"softmax_cross_entropy", "cross_entropy"},
    {"categorical_crossentropy", "cross_entropy"},
    {"sparse_categorical_crossentropy", "cross_entropy"},
    {"bce", "bce_with_logits"},
    {"binary_crossentropy", "bce_with_logits"},
    {"mean_squared_error", "mse"},
    {"l2", "mse"},
    {"mae", "l1"},
    {"smooth_l1", "huber"},
    {"roc_auc", "auc"},
    {"auroc", "auc"},
    {"f1_score", "f1"},
    {"f1_macro", "f1"},
    {"acc", "accuracy"},
    {"top1", "accuracy"},
    {"ppl", "perplexity"},
    {"he_normal", "kaiming_normal"},
    {"he_uniform", "kaiming_uniform"},
    {"glorot_normal", "xavier_normal"},
    {"glorot_uniform", "xavier_uniform"},
};

// Returns the one of our words that others call so; "" where there is none.
std::string_view our_value(std::string_view word, const Words& words) {
  std::string lower(word);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const auto& [theirs, ours] : kForeignValues)
    if (theirs == lower && std::ranges::count(words, ours) > 0) return ours;
  return "";
}

using Keys = std::vector<const Key*>;

bool among(std::string_view word, const Keys& keys) {
  return std::ranges::find(keys, word, &Key::name) != keys.end();
}

// Returns whether a file has this table once, so that a path names its keys.
bool is_single(const Table& table) {
  return !table.path.empty() && table.path.find('.') == table.path.npos && &table != &tables::layer;
}

// Returns the key of a table, or of one of its types.
const Key* key_of(const Table& table, std::string_view word) {
  const Key* key = find_key(table.keys, word);
  for (auto type = table.types.begin(); key == nullptr && type != table.types.end(); ++type)
    key = find_key((*type)->keys, word);
  return key;
}

// "train.micro_batch" for a key of another table that a file has once.
std::string elsewhere(std::string_view word) {
  for (const Table* table : all_tables()) {
    if (!is_single(*table)) continue;
    if (word == table->path) return fmt::format("[{}]", word);
    if (key_of(*table, word) != nullptr) return fmt::format("{}.{}", table->path, word);
  }
  return "";
}

bool called(const Foreign& key, std::string_view word) { return std::ranges::count(key.words, word) > 0; }

// The key that others call so; null when there is none.
const Foreign* ours(std::string_view word, const Keys& keys) {
  for (const Foreign& foreign : foreign_words)
    if (called(foreign, word) && among(foreign.ours, keys)) return &foreign;
  return nullptr;
}

Words names_of(const Keys& keys) {
  Words names;
  for (const Key* key : keys) names.push_back(key->name);
  return names;
}

// Returns the advice for an unknown key: the key that was meant, or the keys that exist.
std::string key_hint(std::string_view word, const Keys& known) {
  if (const Foreign* key = ours(word, known))
    return key->write.empty() ? fmt::format("; it is called `{}` here", key->ours)
                              : fmt::format("; write `{}`", key->write);
  for (const Foreign& foreign : foreign_words)
    if (called(foreign, word) && foreign.ours.find('.') != word.npos)
      return fmt::format("; write `{}`", foreign.write);
  if (std::string near = did_you_mean(word, names_of(known)); !near.empty()) return near;
  std::string there = elsewhere(word);
  for (const Foreign& foreign : foreign_words)
    if (called(foreign, word) && there.empty()) there = elsewhere(foreign.ours);
  if (!there.empty()) return fmt::format("; did you mean `{}`?", there);
  return fmt::format("; its keys are `{}`", fmt::join(names_of(known), "`, `"));
}

// Returns the advice for a type that is a word of one of the types' keys: `relu` is a function of `activation`.
std::string type_hint(std::string_view word, const std::vector<const TypeSchema*>& types) {
  for (const TypeSchema* type : types) {
    for (const Foreign& foreign : foreign_words)
      if (foreign.ours == type->name && called(foreign, word))
        return fmt::format("; it is called \"{}\" here", type->name);
    for (const Key& key : type->keys)
      if (const std::string near = nearest(word, words_of(key)); key.fallback.required && !near.empty())
        return fmt::format("; write `type = \"{}\"` and `{} = \"{}\"`", type->name, key.name, near);
  }
  return "";
}

// The values that a form takes: an element, a list of them, or either.
struct Taken {
  Node::Form element;
  bool one, list;
};
constexpr Taken taken[] = {
#define X(name, element, one, list, text) {Node::Form::element, one, list},
#include "ir/schema/forms.def"
};

const Key type_key{"type", Form::text, required, ""};

class TableReader {
 public:
  TableReader(const Node& node, const Table& table, Diag& diag, std::string what, const std::string& path)
      : node_(node), table_(table), diag_(diag), what_(std::move(what)), layer_(&table == &tables::layer) {
    const Node* type = node.find("type");
    values_.place = node.at;
    values_.type_at = type != nullptr ? type->at : node.at;
    values_.path = path.empty() ? "" : path + '.';
  }

  Values read() {
    if (!table_.types.empty()) read_type();
    if (values_.type != nullptr)
      for (const Key& key : values_.type->keys) known_.push_back(&key);
    for (const Key& key : table_.keys) known_.push_back(&key);
    // In a table of an unknown type all values are checked, whatever the type was meant to be; of a layer nothing is
    // known then.
    const bool untyped = values_.type == nullptr && !table_.types.empty();
    if (untyped && !layer_)
      for (const TypeSchema* type : table_.types)
        for (const Key& key : type->keys)
          if (!among(key.name, known_)) known_.push_back(&key);
    for (const Entry& entry : node_.entries)
      if (!among(entry.key, known_) && (entry.key != "type" || table_.types.empty()) &&
          others_.size() < kMostOthers)
        others_.push_back(&entry);
    for (const Key* key : known_) values_.values.push_back(value(*key));
    if (!untyped || !layer_) refuse_others();
    return std::move(values_);
  }

 private:
  void read_type() {
    Words types;
    for (const TypeSchema* type : table_.types) types.push_back(type->name);
    const Node* node = node_.find("type");
    if (node == nullptr)
      diag_.error(Kind::missing_key, node_.at, "{} needs `type`{}", what_,
                  layer_ ? "" : "; it can be " + list_words(types));
    if (node == nullptr || !is(*node, type_key, Node::Form::text)) return;
    const auto found = std::ranges::find(types, node->text);
    if (found == types.end()) {
      const std::string near = did_you_mean(node->text, types);
      const bool inner = table_.path.find('.') != table_.path.npos;
      return unknown_word(*node,
                          layer_  ? "layer type"
                          : inner ? "type of " + what_
                                  : table_.path,
                          types, near.empty() ? type_hint(node->text, table_.types) : near);
    }
    values_.type = table_.types[static_cast<size_t>(found - types.begin())];
    what_ += fmt::format(" of type \"{}\"", node->text);
  }

  void unknown_word(const Node& node, std::string_view what, const Words& words, const std::string& hint) {
    const std::string_view ours = our_value(node.text, words);
    diag_.error(Kind::unknown_value, node.at, "unknown {} \"{}\"{}", what, node.text,
                !ours.empty()  ? fmt::format("; it is called \"{}\" here", ours)
                : hint.empty() ? "; it can be " + list_words(words)
                               : hint);
  }

  bool is(const Node& node, const Key& key, Node::Form form) {
    using enum Node::Form;
    if (node.form == form || (form == real && node.form == integer)) return true;
    const std::string name = values_.name(key.name);
    const bool entries = key.form == Form::tables;
    const bool as_list = node.is_list() && !node.items.empty() && node.items[0].is_table();
    if (form == table ? as_list : form == list && entries && node.is_table())
      diag_.error(Kind::wrong_type, node.at, "{}", header_text(name, entries));
    else
      diag_.error(Kind::wrong_type, node.at, "`{}` must {}, not {}{}", name,
                  form == table && entries             ? "hold tables"
                  : form == real                       ? "be a number"
                  : key.form == Form::integer_or_share ? "be an integer or a share such as \"3%\""
                  : key.form == Form::size             ? "be a size such as \"512MiB\""
                                                       : fmt::format("be {}", form_text(form)),
                  form_text(node.form),
                  form == table && !entries           ? key_of_word(name, node)
                  : form == list && node.form == text ? fmt::format(": [\"{}\"]", node.text)
                                                      : "");
    return false;
  }

  // Returns where the word belongs that stands for a whole table, as in precision = "bf16".
  static std::string key_of_word(std::string_view table, const Node& node) {
    constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
        {"precision", "compute"}, {"recompute", "policy"}, {"optimizer", "type"}, {"schedule", "type"},
        {"loss", "type"},         {"memory", "budget"},    {"model", "name"},     {"launch", "mode"}};
    const auto key = std::ranges::find(kKeys, table, &std::pair<std::string_view, std::string_view>::first);
    if (node.form != Node::Form::text || key == std::end(kKeys)) return "";
    return fmt::format("; that is `{}.{}` = \"{}\"", table, key->second, node.text);
  }

  // Checks that a value, or an element of a list, has the key's form.
  bool fits(const Node& node, const Key& key, Node::Form form, const Words& words) {
    if (!is(node, key, form)) return false;
    if (form == Node::Form::text && !words.empty() && std::ranges::count(words, node.text) == 0) {
      const std::string what = key.form == Form::activation ? "activation"
                               : key.form == Form::metrics  ? "metric"
                               : key.form == Form::words    ? fmt::format("value of `{}`", key.name)
                                                            : std::string(key.name);
      const std::string near = did_you_mean(node.text, words);
      const bool alone = !near.empty() || taken[static_cast<size_t>(key.form)].element == Node::Form::text;
      unknown_word(
          node, what, words,
          alone ? near : fmt::format("; it can be: {}, or {}", form_text(key.form), list_words(words)));
      return false;
    }
    if (form != Node::Form::integer && form != Node::Form::real) return true;
    // Kernels compute in f32: a real number is tested as what it is there.
    const double number = node.number();
    const double used = form == Node::Form::real ? double{static_cast<float>(number)} : number;
    const bool vanishes = used == 0 && number != 0;
    if (std::isfinite(used) && key.range.contains(used) && !vanishes) return true;
    const std::string said =
        node.form == Node::Form::integer ? fmt::to_string(node.integer) : fmt::to_string(node.real);
    if (std::isfinite(number) && key.range.contains(number))
      diag_.error(Kind::out_of_range, node.at, "`{}` is {}, which in f32 is {}{}", values_.name(key.name),
                  said, used,
                  !std::isfinite(used)       ? "; it must be finite"
                  : key.range.contains(used) ? ""
                                             : fmt::format("; it must be {}", key.range.text(used)));
    else
      diag_.error(Kind::out_of_range, node.at, "`{}` must be {}, not {}", values_.name(key.name),
                  key.range.contains(number) ? "finite" : key.range.text(number), said);
    return false;
  }

  // Checks the length of a list, and that no word is in it twice, which is reported alone.
  bool list_fits(const Node& node, const Key& key, const Words& words) {
    const size_t exact = key.form == Form::pair ? 2 : key.form == Form::reals ? key.most : 0;
    const size_t found = node.items.size();
    std::string wrong;
    if (exact > 0 && found != exact)
      wrong =
          fmt::format("must be {}, not {}",
                      key.form == Form::pair ? "one number or two" : fmt::format("{} numbers", exact), found);
    else if (key.most > 0 && found > key.most)
      wrong = fmt::format("has {} elements; at most {} are possible", found, key.most);
    else if (found == 0 &&
             (key.form == Form::reals || key.form == Form::real_or_reals || key.form == Form::flags))
      wrong = "is empty";
    if (!wrong.empty()) diag_.error(Kind::out_of_range, node.at, "`{}` {}", values_.name(key.name), wrong);
    std::set<std::string_view> seen;
    for (const Node& item : node.items)
      if (!words.empty() && !item.text.empty() && !seen.insert(item.text).second)
        diag_.error(Kind::duplicate_name, item.at, "`{}` lists \"{}\" twice", values_.name(key.name),
                    item.text);
    return wrong.empty();
  }

  template <class F>
  static ir::Attr attr(std::span<const Node> nodes, bool list, F of) {
    std::vector<std::decay_t<std::invoke_result_t<F, const Node&>>> all;
    for (const Node& node : nodes) all.push_back(std::invoke(of, node));
    return list ? ir::Attr(std::move(all)) : ir::Attr(std::move(all.front()));
  }

  // Reads a key's value or tables; leaves it alone where later readers look at the node.
  void read(const Node& node, const Key& key, KeyValue& value) {
    using enum Node::Form;
    const Taken as = taken[static_cast<size_t>(key.form)];
    const bool named = key.form == Form::reals && key.table != nullptr;
    if (named && node.is_table()) return;  // its reader knows the names
    const Words words = words_of(key);
    const bool word = !words.empty() || key.form == Form::integer_or_share;
    const Node::Form form = word && node.form == text && (as.one || named) ? text : as.element;
    const bool one = form != as.element || !as.list || (as.one && !node.is_list());
    value.good = one || (is(node, key, list) && list_fits(node, key, words));
    if (!value.good) return;
    const std::span<const Node> nodes = one ? std::span(&node, 1) : std::span(node.items);
    for (const Node& each : nodes)
      if (!fits(each, key, form, words)) value.good = form == table && !one;  // other tables can be read
    if (!value.good) return;
    if (key.form == Form::size) {
      if (const std::optional<int64_t> bytes = ir::parse_bytes(node.text)) value.value = *bytes;
      value.good = value.value.has_value();
      if (!value.good)
        diag_.error(Kind::out_of_range, node.at,
                    "`{}` is not a size: \"{}\"; write it like \"512MiB\" or \"1.5GiB\"",
                    values_.name(key.name), node.text);
    } else if (form == text && key.form == Form::integer_or_share) {
      if (const std::optional<double> percent = parse_share(node.text)) value.value = *percent;
      value.good = value.value.has_value();
      if (!value.good)
        diag_.error(Kind::out_of_range, node.at,
                    "`{}` is no share above 0 % and below 100 %: \"{}\"; write it like \"3%\"",
                    values_.name(key.name), node.text);
    } else if (form == text) {
      value.value = attr(nodes, !one, &Node::text);
    } else if (form == integer) {
      value.value = attr(nodes, !one, &Node::integer);
      if (key.form == Form::pair && one) value.value = std::vector<int64_t>(2, node.integer);
    } else if (form == real) {
      value.value = attr(nodes, !one || key.form == Form::real_or_reals, &Node::number);
    } else if (form == flag && one) {
      value.value = node.flag;
    } else if (form == table && key.table != nullptr) {
      // [train] and [[optimizer.groups]] are called what they are; others go by their key.
      const std::string title = key.table->title();
      const std::string what = title.starts_with('[') ? title : fmt::format("`{}`", key.name);
      const size_t before = diag_.reports().size();
      for (const Node& each : nodes)
        if (each.is_table())
          value.tables.push_back(read_table(each, *key.table, diag_, what, values_.name(key.name)));
      value.good = diag_.reports().size() == before;
    }
  }

  KeyValue value(const Key& key) {
    KeyValue value;
    value.key = &key;
    value.node = node_.find(key.name);
    if (value.node != nullptr) read(*value.node, key, value);
    // A value that is wrong is reported, and what follows goes on with the default.
    if (value.node == nullptr || !value.good) {
      value.value = key.fallback.value;
      if (key.form == Form::pair && value.value)
        value.value = std::vector<int64_t>(2, std::get<int64_t>(*value.value));
    }
    const bool must =
        key.fallback.required && (values_.type != nullptr || find_key(table_.keys, key.name) != nullptr);
    if (value.node != nullptr || !must) return value;
    value.good = false;
    // Under another name it is an unknown key, which is reported.
    if (std::ranges::any_of(others_, [&](const Entry* entry) { return means(entry->key, key); }))
      return value;
    if (&table_ != &tables::file)
      diag_.error(Kind::missing_key, node_.at, "{} needs `{}`", what_, key.name);
    else
      diag_.error(Kind::missing_key, {}, "the table {} is missing",
                  fmt::format(fmt::runtime(key.form == Form::tables ? "[[{}]]" : "[{}]"), key.name));
    return value;
  }

  // Returns true when a word that is no key here was meant to be this one.
  bool means(std::string_view word, const Key& key) {
    const Foreign* foreign = ours(word, known_);
    return (foreign != nullptr ? foreign->ours : nearest(word, names_of(known_))) == key.name;
  }

  // Keys that the table does not have, or has with other types only.
  void refuse_others() {
    for (const Entry* other : others_) {
      const Entry& entry = *other;
      Words owners;
      for (const TypeSchema* type : table_.types)
        if (find_key(type->keys, entry.key) != nullptr) owners.push_back(type->name);
      if (owners.empty() || ours(entry.key, known_) != nullptr) {
        diag_.error(Kind::unknown_key, entry.key_at, "{} has no key `{}`{}", what_, entry.key,
                    key_hint(entry.key, known_));
      } else {
        diag_.error(Kind::conflict, entry.value.at, "`{}` is for {}; the type here is \"{}\"",
                    values_.name(entry.key), list_words(owners), values_.type->name);
      }
    }
  }

  const Node& node_;
  const Table& table_;
  Diag& diag_;
  std::string what_;
  const bool layer_;
  Keys known_;
  static constexpr size_t kMostOthers = 1000;  // that are looked at: more would not be shown
  std::vector<const Entry*> others_;           // what is in the file and no key
  Values values_;
};

}  // namespace

Values read_table(const Node& node, const Table& table, Diag& diag, std::string what, std::string path) {
  return TableReader(node, table, diag, std::move(what), path).read();
}

KeyPlace key_called(std::string_view word) {
  std::vector<const Table*> single;
  // The last table first: a budget is that of [memory], and not that of [recompute].
  for (const Table* table : all_tables())
    if (is_single(*table)) single.insert(single.begin(), table);
  const auto found = [&](std::string_view name) -> KeyPlace {
    for (const Table* table : single)
      if (const Key* key = key_of(*table, name)) return {table, key};
    return {};
  };
  for (const Table* table : single)
    if (table->path == word && !table->types.empty()) return {table, nullptr};
  for (const Foreign& foreign : foreign_words)
    if (const KeyPlace place = found(foreign.ours); called(foreign, word) && place.table != nullptr)
      return place;
  if (const KeyPlace place = found(word); place.table != nullptr) return place;
  for (const Table* table : single) {  // "train.epochs", "optimizer_type"
    const size_t length = table->path.size();
    if (!word.starts_with(table->path) || word.size() <= length ||
        (word[length] != '.' && word[length] != '_'))
      continue;
    const std::string_view rest = word.substr(length + 1);
    if (rest == "type" && !table->types.empty()) return {table, nullptr};
    if (const Key* key = key_of(*table, rest)) return {table, key};
  }
  return {};
}

std::vector<std::string> words_for_keys() {
  std::vector<std::string> words;
  const auto add = [&](std::string_view path, const std::vector<Key>& keys) {
    for (const Key& key : keys)
      for (const std::string_view between : {".", "_"})
        words.insert(words.end(), {std::string(key.name), fmt::format("{}{}{}", path, between, key.name)});
  };
  for (const Table* table : all_tables()) {
    if (!is_single(*table)) continue;
    add(table->path, table->keys);
    for (const TypeSchema* type : table->types) add(table->path, type->keys);
    if (!table->types.empty())
      words.insert(words.end(), {std::string(table->path), fmt::format("{}.type", table->path),
                                 fmt::format("{}_type", table->path)});
  }
  for (const Foreign& foreign : foreign_words)
    for (const std::string_view word : foreign.words)
      if (key_called(word).table != nullptr) words.emplace_back(word);
  return words;
}

}  // namespace gacc::frontend
