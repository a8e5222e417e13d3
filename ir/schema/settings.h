// Settings of a model file other than ops, with their defaults, and results that the compiler hands on.
// settings.def lists both. In text each is a line `set KEY = VALUE`; docs/ir.md has the keys.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ir/types.h"

namespace gacc::ir {

using Texts = std::vector<std::string>;
using Attr =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, Texts>;
using Attrs = std::map<std::string, Attr, std::less<>>;  // sorted: the printed order is the key order

// A value that may be given, with what holds when it is not.
template <class T>
class Setting {
 public:
  Setting(T fallback) : fallback_(std::move(fallback)) {}
  const T& operator*() const { return value_ ? *value_ : fallback_; }
  const T* operator->() const { return &**this; }
  bool given() const { return value_.has_value(); }
  void operator=(T value) { value_ = std::move(value); }
  void clear() { value_.reset(); }

 private:
  std::optional<T> value_{};
  T fallback_;
};

// The values of predict.form: what predictions make of the loss's input.
inline constexpr std::string_view kOutputForms[] = {"logits", "probabilities", "class"};

struct ColumnSettings {  // a column of texts that an input takes as zeros and a one
  std::string name{};
  Texts values{};  // its texts, one an element of the input
};

struct InputSettings {
  std::optional<int64_t> range{};         // i32: values are 0 to range - 1
  std::optional<int64_t> ignore_index{};  // and this one
  bool normalize_data = false;            // by the mean and the deviation of the training data
  std::vector<double> mean{}, std{};      // one number, or one for each index of the first axis
  Texts values{};                         // i32: the texts that are 0, 1, 2 ... in data
  std::vector<ColumnSettings> columns{};  // f32
};

struct GroupSettings {  // one of optimizer.groups
  Texts match{};        // patterns of parameters' names
  std::optional<double> weight_decay{}, lr_factor{};
};

struct LoadSettings {  // what a parameter is called in weights from elsewhere
  std::string parameter{};
  Texts tensors{};               // one, or several that lie behind each other along the first axis
  bool transpose = false;        // each of them is the transposed one
  std::vector<int64_t> parts{};  // the rows of each; of one tensor: of its parts, others' below 0
  // The rows of a head of each tensor in which rows of a head's second half lie between those of its first; 0: they
  // lie as here. Empty: all do.
  std::vector<int64_t> interleave{};
  std::optional<double> shift{};  // what the file's numbers have more than ours
};

struct AdapterSettings {  // NAME.lora_A.weight and NAME.lora_B.weight
  std::string name{};
  std::string weight{};  // alpha / rank * B A is added to rows of this one ...
  int64_t begin = 0;     // ... from here on
  double alpha = 1;
};

struct Settings {
  // clang-format off
#define GACC_TABLE(table) struct {
#define GACC_SETTING(table, name, type, fallback) Setting<type> name{fallback};
#define GACC_TABLE_END(table) } table;
  // clang-format on
#include "ir/schema/settings.def"
  std::map<std::string, InputSettings, std::less<>> inputs{};
  std::vector<GroupSettings> groups{};
  std::vector<LoadSettings> loads{};  // of the parameters that are called or lie otherwise
  std::vector<LoadSettings> ggufs{};  // the same in a GGUF
  std::vector<AdapterSettings> adapters{};
  // Keys that the type of the optimizer, the schedule or the loss adds: "optimizer.beta1".
  Attrs of_types{};

  // Returns the value of a key of `of_types`; null where it is not given.
  const Attr* of_type(std::string_view key) const;
  // Returns the same as a number, integer or not.
  double real(std::string_view key, double fallback) const;
  const InputSettings& input(std::string_view name) const;  // the default where nothing is said
};

struct Results {
#define GACC_RESULT(name, key, type, fallback) Setting<type> name{fallback};
#include "ir/schema/settings.def"
};

// A setting or a result by its key. What is wrong with it is said, "" for nothing.
std::string set(Settings& settings, Results& results, std::string_view key, const Attr& value);
// Those that are given, sorted by key.
Attrs given(const Settings& settings, const Results& results);

inline Attr to_attr(DType value) { return std::string(dtype_text(value)); }
inline Attr to_attr(Attr value) { return value; }

}  // namespace gacc::ir
