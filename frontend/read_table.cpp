// Reads a table by its list of keys.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "frontend/loss_type.h"
#include "frontend/schema.h"
#include "ir/op_info.h"
#include "ir/size_text.h"

namespace gacc::frontend {

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameLength && std::none_of(text.begin(), text.end(), [](char c) {
    return c == '.' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

std::vector<std::string_view> words_of(const Key& key) {
  std::vector<std::string_view> words = key.words;
  if (key.form == Form::activation) {
    for (const ir::OpInfo* op : ir::all_ops())
      if (op->activation) words.push_back(op->name);
  } else if (key.form == Form::metric) {
    words = metric_names();
    words.insert(words.begin(), "loss");
  }
  return words;
}

const Value& Values::operator[](std::string_view key) const {
  for (const Value& value : values)
    if (value.key->name == key) return value;
  throw std::logic_error(fmt::format("internal error: the schema of {}{} has no such key", path, key));
}

const Location& Values::at(std::string_view key) const {
  const Node* node = (*this)[key].node;
  return node != nullptr ? node->at : place;
}

std::span<const Node> Values::nodes(std::string_view key) const {
  const Value& value = (*this)[key];
  if (value.node == nullptr || !value.good) return {};
  return value.node->is_list() ? std::span(value.node->items) : std::span(value.node, 1);
}

void Values::store(ir::Settings& settings) const {
  ir::Results none;
  for (const Value& value : values) {
    if (!value.value || value.key->form == Form::table) continue;
    if (value.key->implied && value.value == value.key->fallback.value) continue;
    set(settings, none, path + std::string(value.key->name), *value.value);  // not "auto" for a number
  }
}

namespace {

// What others call our keys. A word may mean several: the first that the table has counts.
struct Foreign {
  std::string_view ours;
  std::vector<std::string_view> words;
  std::string_view write = {};  // where the value is another one, too
};
const std::vector<Foreign>& foreign_words() {
  static const std::vector<Foreign> words = {
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
      {"accumulate", {"gradient_accumulation_steps", "accumulation_steps"}},
      {"clip_norm", {"grad_clip", "gradient_clip", "max_norm"}},
      {"lr", {"learning_rate", "rate"}},
      {"groups", {"no_decay", "param_groups"}, "[[optimizer.groups]]"},
      {"class_weights", {"weight", "weights", "class_weight"}},
      {"total", {"T_max", "total_steps"}},
      {"min_lr", {"eta_min"}},
      {"compute", {"amp", "dtype"}},
      {"seed", {"random_seed"}},
      {"linear", {"dense", "fc", "fully_connected"}},  // types of layers
      {"conv2d", {"conv", "convolution"}},
      {"embedding", {"embed"}},
      {"attention", {"self_attention", "mha", "multihead_attention"}},
  };
  return words;
}

bool among(std::string_view word, const std::vector<const Key*>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const Key* key) { return key->name == word; });
}

// "train.micro_batch" for a key, in our words or others', of another table that a file has once.
std::string elsewhere(std::string_view word) {
  for (const Table* table : schema().all()) {
    if (table->path.empty() || table->path.find('.') != std::string_view::npos || table == &schema().layer)
      continue;
    if (word == table->path || find_key(table->keys, word) != nullptr)
      return word == table->path ? fmt::format("[{}]", word) : fmt::format("{}.{}", table->path, word);
    for (const TypeSchema* type : table->types)
      if (find_key(type->keys, word) != nullptr) return fmt::format("{}.{}", table->path, word);
  }
  return "";
}

bool called(const Foreign& key, std::string_view word) { return std::ranges::count(key.words, word) > 0; }

// The key that others call so; null when there is none.
const Foreign* ours(std::string_view word, const std::vector<const Key*>& keys) {
  for (const Foreign& foreign : foreign_words())
    if (called(foreign, word) && among(foreign.ours, keys)) return &foreign;
  return nullptr;
}

std::vector<std::string_view> names_of(const std::vector<const Key*>& keys) {
  std::vector<std::string_view> names;
  for (const Key* key : keys) names.push_back(key->name);
  return names;
}

// The key that an unknown one means, "" when that cannot be told.
std::string meant(std::string_view word, const std::vector<const Key*>& keys) {
  const Foreign* foreign = ours(word, keys);
  return foreign != nullptr ? std::string(foreign->ours) : nearest(word, names_of(keys));
}

// What to say after an unknown key: the key that is meant, or the keys that there are.
std::string key_hint(std::string_view word, const std::vector<const Key*>& known) {
  if (const Foreign* key = ours(word, known))
    return key->write.empty() ? fmt::format("; it is called `{}` here", key->ours)
                              : fmt::format("; write `{}`", key->write);
  const std::vector<std::string_view> names = names_of(known);
  if (std::string near = did_you_mean(word, names); !near.empty()) return near;
  std::string there = elsewhere(word);
  for (const Foreign& foreign : foreign_words())
    if (called(foreign, word) && there.empty()) there = elsewhere(foreign.ours);
  if (!there.empty()) return fmt::format("; did you mean `{}`?", there);
  std::string list;
  for (const std::string_view name : names) list += fmt::format("{}`{}`", list.empty() ? "" : ", ", name);
  return fmt::format("; its keys are {}", list);
}

// What to say of a type that is a word of one of the types' keys: `relu` is a function of `activation`.
std::string type_hint(std::string_view word, const std::vector<const TypeSchema*>& types) {
  for (const TypeSchema* type : types) {
    for (const Foreign& foreign : foreign_words())
      if (foreign.ours == type->name && called(foreign, word))
        return fmt::format("; it is called \"{}\" here", type->name);
    for (const Key& key : type->keys)
      if (const std::string near = nearest(word, words_of(key)); key.fallback.required && !near.empty())
        return fmt::format("; write `type = \"{}\"` and `{} = \"{}\"`", type->name, key.name, near);
  }
  return "";
}

// Reports a word that is none of `words`, which are the names of `types` where there are some.
bool is_word(const Node& node, std::string_view what, const std::vector<std::string_view>& words, Diag& diag,
             const std::vector<const TypeSchema*>* types = nullptr) {
  if (std::find(words.begin(), words.end(), node.text) != words.end()) return true;
  std::string hint = did_you_mean(node.text, words);
  if (hint.empty() && types != nullptr) hint = type_hint(node.text, *types);
  if (hint.empty()) hint = fmt::format("; it can be {}", list_words(words));
  diag.error(Kind::unknown_value, node.at, "unknown {} \"{}\"{}", what, node.text, hint);
  return false;
}

class TableReader {
 public:
  TableReader(const Node& node, const Table& table, Diag& diag, std::string_view what,
              std::optional<std::string_view> path)
      : node_(node), table_(table), diag_(diag), what_(what.empty() ? table.name : what) {
    values_.place = node.at;
    values_.path = path.value_or(table.path);
    if (!values_.path.empty()) values_.path += '.';
  }

  Values read() {
    for (const TypeSchema* type : table_.types) types_.push_back(type->name);
    if (!table_.types.empty()) read_type();
    if (values_.type != nullptr)
      for (const Key& key : values_.type->keys) known_.push_back(&key);
    for (const Key& key : table_.keys) known_.push_back(&key);
    // Of a table whose type is wrong all values are checked, whatever it was meant to be; of a layer nothing
    // is known then.
    if (values_.type == nullptr && &table_ != &schema().layer)
      for (const TypeSchema* type : table_.types)
        for (const Key& key : type->keys)
          if (!among(key.name, known_)) known_.push_back(&key);
    for (const Key* key : known_) values_.values.push_back(value(*key));
    if (table_.types.empty() || values_.type != nullptr || &table_ != &schema().layer) refuse_others();
    return std::move(values_);
  }

 private:
  void read_type() {
    const Node* node = node_.find("type");
    if (node == nullptr) {
      diag_.error(Kind::missing_key, node_.at, "{} needs `type`{}", what_,
                  &table_ == &schema().layer ? "" : "; it can be " + list_words(types_));
      return;
    }
    const std::string_view noun = &table_ == &schema().layer ? "layer type" : table_.path;
    if (!is(*node, "type", Node::Form::text) || !is_word(*node, noun, types_, diag_, &table_.types)) return;
    values_.type = *std::find_if(table_.types.begin(), table_.types.end(),
                                 [&](const TypeSchema* type) { return type->name == node->text; });
    what_ = fmt::format("{} of type \"{}\"", what_, node->text);
  }

  bool is(const Node& node, std::string_view key, Node::Form form) {
    if (node.form == form) return true;
    if (form == Node::Form::table && node.is_list() && !node.items.empty() && node.items[0].is_table()) {
      diag_.error(Kind::wrong_type, node.at, "the table `{0}` is written [{0}], not [[{0}]]",
                  values_.name(key));
      return false;
    }
    diag_.error(Kind::wrong_type, node.at, "`{}` must be {}, not {}", values_.name(key), form_text(form),
                form_text(node.form));
    return false;
  }

  template <class Number>
  std::optional<Number> in_range(const Node& node, const Key& key, Number value) {
    const auto found = static_cast<double>(value);
    // Kernels compute in f32: what overflows there is out of range here.
    if (std::isfinite(static_cast<float>(found)) && key.range.contains(found)) return value;
    diag_.error(Kind::out_of_range, node.at, "`{}` must be {}, not {}", values_.name(key.name),
                key.range.text(found), value);
    return std::nullopt;
  }

  std::optional<int64_t> integer(const Node& node, const Key& key) {
    if (!is(node, key.name, Node::Form::integer)) return std::nullopt;
    return in_range(node, key, node.integer);
  }

  std::optional<double> real(const Node& node, const Key& key) {
    if (node.form == Node::Form::integer) return in_range(node, key, static_cast<double>(node.integer));
    if (node.form == Node::Form::real) return in_range(node, key, node.real);
    diag_.error(Kind::wrong_type, node.at, "`{}` must be a number, not {}", values_.name(key.name),
                form_text(node.form));
    return std::nullopt;
  }

  std::optional<bool> flag(const Node& node, const Key& key) {
    return is(node, key.name, Node::Form::flag) ? std::optional(node.flag) : std::nullopt;
  }

  std::optional<std::string> text(const Node& node, const Key& key) {
    return is(node, key.name, Node::Form::text) ? std::optional(node.text) : std::nullopt;
  }

  // The elements of a list.
  template <class T>
  std::optional<std::vector<T>> list(const Node& node, const Key& key,
                                     std::optional<T> (TableReader::*read)(const Node&, const Key&)) {
    if (!is(node, key.name, Node::Form::list)) return std::nullopt;
    const size_t exact = key.form == Form::pair ? 2 : key.form == Form::reals ? key.most : 0;
    const size_t found = node.items.size();
    const std::string name = values_.name(key.name);
    std::string wrong;
    if (exact > 0 && found != exact)
      wrong =
          fmt::format("`{}` must be {}, not {}", name,
                      key.form == Form::pair ? "one number or two" : fmt::format("{} numbers", exact), found);
    else if (key.most > 0 && found > key.most)
      wrong = fmt::format("`{}` has {} elements; at most {} are possible", name, found, key.most);
    else if (!std::is_same_v<T, int64_t> && found == 0)
      wrong = fmt::format("`{}` is empty", name);
    if (!wrong.empty()) {
      diag_.error(Kind::out_of_range, node.at, "{}", wrong);
      return std::nullopt;
    }
    std::vector<T> out;
    for (const Node& item : node.items)
      if (const std::optional<T> element = (this->*read)(item, key)) out.push_back(*element);
    return out.size() == found ? std::optional(out) : std::nullopt;
  }

  std::optional<std::vector<double>> numbers(const Node& node, const Key& key) {
    if (node.is_list()) return list(node, key, &TableReader::real);
    const std::optional<double> one = real(node, key);
    return one ? std::optional(std::vector{*one}) : std::nullopt;
  }

  std::optional<std::vector<int64_t>> pair(const Node& node, const Key& key) {
    if (node.is_list()) return list(node, key, &TableReader::integer);
    const std::optional<int64_t> both = integer(node, key);
    return both ? std::optional(std::vector{*both, *both}) : std::nullopt;
  }

  bool texts(const Node& node, const Key& key) {
    if (!is(node, key.name, Node::Form::list)) return false;
    return std::all_of(node.items.begin(), node.items.end(), [&](const Node& item) {
      return is(item, key.name, Node::Form::text) &&
             (key.form != Form::words ||
              is_word(item, key.name == "metrics" ? "metric" : fmt::format("value of `{}`", key.name),
                      key.words, diag_));
    });
  }

  bool tables(const Node& node, const Key& key) {
    if (!node.is_table()) return is(node, key.name, Node::Form::list);
    diag_.error(Kind::wrong_type, node.at, "the entries of the list `{0}` are written [[{0}]], not [{0}]",
                values_.name(key.name));
    return false;
  }

  std::optional<int64_t> size(const Node& node, const Key& key) {
    if (!is(node, key.name, Node::Form::text)) return std::nullopt;
    const std::optional<int64_t> bytes = ir::parse_bytes(node.text);
    if (!bytes)
      diag_.error(Kind::out_of_range, node.at,
                  "`{}` is not a size: \"{}\"; write it like \"512MiB\" or \"1.5GiB\"",
                  values_.name(key.name), node.text);
    return bytes;
  }

  // What the file says of a key: a value; nothing, where later readers look at the node; or what is wrong, and
  // reported.
  struct Reading {
    bool good;
    std::optional<ir::Attr> value{};
    Reading(bool right) : good(right) {}
    template <class T>
    Reading(const std::optional<T>& read) : good(read.has_value()) {
      if (read) value = *read;
    }
  };
  Reading read(const Node& node, const Key& key) {
    const std::vector<std::string_view> words = words_of(key);
    const bool word = key.form == Form::word || key.form == Form::activation || key.form == Form::metric;
    if (word || (!words.empty() && key.form != Form::words && node.form == Node::Form::text)) {
      const std::string_view noun = key.form == Form::activation ? "activation" : key.name;
      const std::optional<std::string> said = text(node, key);
      return said && is_word(node, noun, words, diag_) ? said : std::nullopt;
    }
    switch (key.form) {
      case Form::integer:
        return integer(node, key);
      case Form::real:
        return real(node, key);
      case Form::flags:
        if (node.is_list()) return list(node, key, &TableReader::flag).has_value();
        return flag(node, key);
      case Form::flag:
        return flag(node, key);
      case Form::size:
        return size(node, key);
      case Form::pair:
        return pair(node, key);
      case Form::integers:
        return list(node, key, &TableReader::integer);
      case Form::reals:
        return list(node, key, &TableReader::real);
      case Form::real_or_reals:
        return numbers(node, key);
      case Form::texts:
      case Form::words:
        return texts(node, key);
      case Form::table:
        return is(node, key.name, Node::Form::table);
      case Form::tables:
        return tables(node, key);
      default:
        return text(node, key);
    }
  }

  Value value(const Key& key) {
    Value value{.key = &key, .node = node_.find(key.name)};
    if (value.node != nullptr) {
      Reading said = read(*value.node, key);
      value.good = said.good;
      value.value = std::move(said.value);
    }
    // A value that is wrong is reported, and what follows goes on with the default.
    if (value.node == nullptr || !value.good) {
      value.value = key.fallback.value;
      if (key.form == Form::pair && value.value)
        value.value = std::vector<int64_t>(2, std::get<int64_t>(*value.value));
    }
    const bool must =
        key.fallback.required && (values_.type != nullptr || find_key(table_.keys, key.name) != nullptr);
    if (value.node == nullptr && must) {
      value.good = false;
      // Under another name it is an unknown key, which is reported.
      const bool misnamed = std::any_of(node_.entries.begin(), node_.entries.end(), [&](const Entry& entry) {
        return !among(entry.key, known_) && meant(entry.key, known_) == key.name;
      });
      if (&table_ != &schema().file && !misnamed)
        diag_.error(Kind::missing_key, node_.at, "{} needs `{}`", what_, key.name);
      else if (!misnamed)
        diag_.error(Kind::missing_key, {}, "the table {0}{2}{1} is missing",
                    key.form == Form::tables ? "[[" : "[", key.form == Form::tables ? "]]" : "]", key.name);
    }
    return value;
  }

  // Keys that the table does not have, or has with other types only.
  void refuse_others() {
    for (const Entry& entry : node_.entries) {
      if (among(entry.key, known_) || (entry.key == "type" && !table_.types.empty())) continue;
      std::vector<std::string_view> owners;
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
  std::vector<std::string_view> types_;
  std::vector<const Key*> known_;
  Values values_;
};

}  // namespace

Values read_table(const Node& node, const Table& table, Diag& diag, std::string_view what,
                  std::optional<std::string_view> path) {
  return TableReader(node, table, diag, what, path).read();
}

}  // namespace gacc::frontend
