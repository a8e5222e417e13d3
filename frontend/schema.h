// Reading of one table of the model file: each getter checks the value's form and range, remembers its key,
// and gives nothing (after a report) when the value is wrong or absent; finish() reports the keys nobody
// asked for.
#pragma once
#include <limits>
#include <span>

#include "frontend/toml_tree.h"

namespace gacc::frontend {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The numbers a key accepts.
struct Range {
  double low = -kInfinity, high = kInfinity;
  bool low_open = false, high_open = false;  // the bound itself is excluded

  bool contains(double x) const {
    return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
  }
  std::string text(double found) const;  // what `found` should be: "at least 0 and below 1"
};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range above(double low) { return {.low = low, .low_open = true}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range below_one{.low = 0, .high = 1, .high_open = true};  // [0, 1)
constexpr Range fraction{.low = 0, .high = 1};                      // [0, 1]
constexpr double kLargest = 2147483647;                             // counts and extents are i32 in kernels
constexpr Range extent{.low = 1, .high = kLargest};                 // a size in elements along one axis
constexpr Range any_number{};

constexpr size_t kMaxNameLength = 100;  // bytes

using Words = std::span<const std::string_view>;

class TableReader {
 public:
  // `what` names the table in messages ("[train]", "a layer of type \"linear\""), `prefix` its keys
  // ("train.").
  TableReader(const Node& table, std::string what, std::string prefix, Diag& diag)
      : table_(table), what_(std::move(what)), prefix_(std::move(prefix)), diag_(diag) {}

  // The value, whatever it is; the key counts as known from here on.
  const Node* find(std::string_view key);
  const Node* table(std::string_view key);
  const Node* list(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  std::optional<int64_t> integer(std::string_view key, Range range);
  std::optional<double> real(std::string_view key, Range range);
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> choice(std::string_view key, std::string_view what,
                                    Words words);  // "activation"
  std::optional<std::vector<int64_t>> integers(std::string_view key, Range range, size_t max_length);
  std::optional<int64_t> bytes(std::string_view key);  // "512MiB"

  // Reports a required key that is absent; true when it is there.
  bool require(std::string_view key);
  // Where a key's value stands; where the table stands when the key is absent.
  Location at(std::string_view key) const;
  const Location& place() const { return table_.at; }
  // Reports unknown keys. `others` are keys of the same table that other types have ("gamma" for another
  // schedule).
  void finish();

  // The same checks on a value that is not directly a key's.
  std::optional<double> real(const Node& node, std::string_view name, Range range);
  std::optional<int64_t> integer(const Node& node, std::string_view name, Range range);
  std::optional<std::string> choice(const Node& node, std::string_view what, Words words);
  bool is(const Node& node, std::string_view name, Node::Form form);  // reports wrong-type

  Diag& diag() { return diag_; }
  std::string path(std::string_view key) const { return prefix_ + std::string(key); }

 private:
  const Node& table_;
  std::string what_, prefix_;
  Diag& diag_;
  std::vector<std::string> known_;
};

// Whether an input or a layer can be called so: the name becomes a part of parameters' paths, which have
// dots, and of one-line messages.
bool is_name(std::string_view text);
std::string number_text(double value);                      // "0.5", "3"
std::string list_words(Words words);                        // "a", "b" or "c"
std::optional<int64_t> parse_bytes(std::string_view text);  // "1.5GiB"; nothing when it is not a size

}  // namespace gacc::frontend
