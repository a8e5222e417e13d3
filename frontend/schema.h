// The schema of the model file (data, in schema.cpp and with each layer, loss, optimizer and schedule) and
// the reading of a table by it: every value is checked for form and range, and every wrong or unknown key
// is reported with its place.
#pragma once
#include <span>

#include "frontend/toml_tree.h"
#include "ir/schema/key.h"

namespace gacc::frontend {

constexpr size_t kMaxNameLength = 100;  // bytes
constexpr size_t kMaxRank = 8;          // axes of a value, per sample

// Ways to start a parameter, besides a distribution.
inline const Words starts = {"default",         "zeros",         "ones",          "kaiming_normal",
                             "kaiming_uniform", "xavier_normal", "xavier_uniform"};

namespace tables {
extern const Table file, model, input, normalize, column, layer, init, rope, rope_scaling, qk_norm, lora,
    loss, predict, train, optimizer, group, schedule, precision, recompute, launch, memory, load, gguf, split,
    adapters;
}
const std::vector<const Table*>& all_tables();  // as they stand in docs/model.md

class Values;

// A key of a table that was read. Without a node it is not in the file; without a value there is no default
// either, or what the file says is wrong, and reported.
struct KeyValue {
  const Key* key = nullptr;
  const Node* node = nullptr;
  std::optional<ir::Attr> value = std::nullopt;
  bool good = true;
  std::vector<Values> tables;  // what it holds, of a key with a table of its own
};

// The values of a table, its defaults filled in. Asking for a key that the schema does not list is a bug.
class Values {
 public:
  const TypeSchema* type = nullptr;  // nothing in a table without types, or when its type is wrong
  std::vector<KeyValue> values;
  Location place{};    // of the table
  Location type_at{};  // of its type; of the table when there is none
  std::string path{};  // "train.": before the names of its keys, in messages

  const KeyValue& operator[](std::string_view key) const;
  bool lists(std::string_view key) const;  // whether the schema does
  bool given(std::string_view key) const { return (*this)[key].node != nullptr; }
  bool has(std::string_view key) const { return (*this)[key].value.has_value(); }
  // Returns the place of a key's value, or of the table when the key is absent.
  const Location& at(std::string_view key) const;
  std::string name(std::string_view key) const { return path + std::string(key); }  // "train.micro_batch"

  // The value; zero or empty when there is none.
  template <class T>
  T get(std::string_view key) const {
    const std::optional<ir::Attr>& value = (*this)[key].value;
    const T* found = value ? std::get_if<T>(&*value) : nullptr;
    return found != nullptr ? *found : T{};
  }
  int64_t integer(std::string_view key) const { return get<int64_t>(key); }
  double real(std::string_view key) const { return get<double>(key); }
  bool flag(std::string_view key) const { return get<bool>(key); }
  std::string text(std::string_view key) const { return get<std::string>(key); }
  bool on(std::string_view key) const { return flag(key) || !text(key).empty(); }  // true, or a word
  std::vector<int64_t> integers(std::string_view key) const { return get<std::vector<int64_t>>(key); }
  std::vector<double> reals(std::string_view key) const { return get<std::vector<double>>(key); }
  // The items of a list or the one value, with their places; none when it is wrong.
  std::span<const Node> nodes(std::string_view key) const;
  // The table of a key: null when the file or the schema has none; then its defaults.
  const Values* find(std::string_view key) const;
  Values table(std::string_view key) const;

  // Puts values into the module's settings: those that it has, but for defaults that go without saying.
  void store(ir::Settings& settings) const;
};

// Reads a table and those in it. `what` names it in messages, and `path` its keys: "train".
Values read_table(const Node& node, const Table& table, Diag& diag, std::string what, std::string path);

// The words that a key takes, "" for none.
Words words_of(const Key& key);

// Returns true if an input or a layer may have this name. The name becomes a part of parameters' paths, which have
// dots, and of one-line messages.
bool is_name(std::string_view text);

}  // namespace gacc::frontend
