// Form, range and word checks shared by all tables.
#include "frontend/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace gacc::frontend {

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameLength && std::none_of(text.begin(), text.end(), [](char c) {
    return c == '.' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

std::string number_text(double value) { return fmt::format("{}", value); }

std::string Range::text(double found) const {
  std::string out;
  // The technical upper limit is of interest to those alone who meet it.
  if (high == kLargest && found > high) return fmt::format("at most {}", number_text(high));
  if (low > -kInfinity) out = fmt::format("{} {}", low_open ? "above" : "at least", number_text(low));
  if (high < kInfinity && high != kLargest) {
    if (!out.empty()) out += " and ";
    out += fmt::format("{} {}", high_open ? "below" : "at most", number_text(high));
  }
  return out.empty() ? "a finite number" : out;
}

std::string list_words(Words words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
    out += fmt::format("\"{}\"", words[i]);
  }
  return out;
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view suffix;
    double bytes;
  };
  constexpr double kKilo = 1000, kKibi = 1024;
  static constexpr Unit units[] = {{"KiB", kKibi},  // longest first: every unit ends in B
                                   {"MiB", kKibi * kKibi},
                                   {"GiB", kKibi * kKibi * kKibi},
                                   {"TiB", kKibi * kKibi * kKibi * kKibi},
                                   {"KB", kKilo},
                                   {"MB", kKilo * kKilo},
                                   {"GB", kKilo * kKilo * kKilo},
                                   {"TB", kKilo * kKilo * kKilo * kKilo},
                                   {"B", 1}};
  for (const Unit& unit : units) {
    if (!text.ends_with(unit.suffix)) continue;
    text.remove_suffix(unit.suffix.size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    const double bytes = number * unit.bytes;
    if (!(bytes >= 1 && bytes <= 0x1p62)) return std::nullopt;
    return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

const Node* TableReader::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
  return table_.find(key);
}

Location TableReader::at(std::string_view key) const {
  const Node* node = table_.find(key);
  return node != nullptr ? node->at : table_.at;
}

bool TableReader::require(std::string_view key) {
  if (find(key) != nullptr) return true;
  diag_.error(Kind::missing_key, table_.at, "{} needs `{}`", what_, key);
  return false;
}

bool TableReader::is(const Node& node, std::string_view name, Node::Form form) {
  if (node.form == form) return true;
  diag_.error(Kind::wrong_type, node.at, "`{}` must be {}, not {}", name, form_text(form),
              form_text(node.form));
  return false;
}

const Node* TableReader::table(std::string_view key) {
  const Node* node = find(key);
  return node != nullptr && is(*node, path(key), Node::Form::table) ? node : nullptr;
}

const Node* TableReader::list(std::string_view key) {
  const Node* node = find(key);
  return node != nullptr && is(*node, path(key), Node::Form::list) ? node : nullptr;
}

std::optional<std::string> TableReader::text(std::string_view key) {
  const Node* node = find(key);
  if (node == nullptr || !is(*node, path(key), Node::Form::text)) return std::nullopt;
  return node->text;
}

std::optional<bool> TableReader::flag(std::string_view key) {
  const Node* node = find(key);
  if (node == nullptr || !is(*node, path(key), Node::Form::flag)) return std::nullopt;
  return node->flag;
}

std::optional<int64_t> TableReader::integer(const Node& node, std::string_view name, Range range) {
  if (!is(node, name, Node::Form::integer)) return std::nullopt;
  if (range.contains(static_cast<double>(node.integer))) return node.integer;
  diag_.error(Kind::out_of_range, node.at, "`{}` must be {}, not {}", name,
              range.text(static_cast<double>(node.integer)), node.integer);
  return std::nullopt;
}

std::optional<int64_t> TableReader::integer(std::string_view key, Range range) {
  const Node* node = find(key);
  return node != nullptr ? integer(*node, path(key), range) : std::nullopt;
}

std::optional<double> TableReader::real(const Node& node, std::string_view name, Range range) {
  const bool integer = node.form == Node::Form::integer;
  if (!integer && node.form != Node::Form::real) {
    diag_.error(Kind::wrong_type, node.at, "`{}` must be a number, not {}", name, form_text(node.form));
    return std::nullopt;
  }
  const double value = integer ? static_cast<double>(node.integer) : node.real;
  // Kernels compute in f32: what overflows there is out of range here.
  if (std::isfinite(static_cast<float>(value)) && range.contains(value)) return value;
  diag_.error(Kind::out_of_range, node.at, "`{}` must be {}, not {}", name, range.text(value),
              number_text(value));
  return std::nullopt;
}

std::optional<double> TableReader::real(std::string_view key, Range range) {
  const Node* node = find(key);
  return node != nullptr ? real(*node, path(key), range) : std::nullopt;
}

std::optional<std::string> TableReader::choice(const Node& node, std::string_view what, Words words) {
  if (!is(node, what, Node::Form::text)) return std::nullopt;
  if (std::find(words.begin(), words.end(), node.text) != words.end()) return node.text;
  std::string hint = did_you_mean(node.text, {words.begin(), words.end()});
  if (hint.empty()) hint = fmt::format("; it can be {}", list_words(words));
  diag_.error(Kind::unknown_value, node.at, "unknown {} \"{}\"{}", what, node.text, hint);
  return std::nullopt;
}

std::optional<std::string> TableReader::choice(std::string_view key, std::string_view what, Words words) {
  const Node* node = find(key);
  if (node == nullptr || !is(*node, path(key), Node::Form::text)) return std::nullopt;
  return choice(*node, what, words);
}

std::optional<std::vector<int64_t>> TableReader::integers(std::string_view key, Range range,
                                                          size_t max_length) {
  const Node* node = list(key);
  if (node == nullptr) return std::nullopt;
  if (node->items.size() > max_length) {
    diag_.error(Kind::out_of_range, node->at, "`{}` has {} elements; at most {} are possible", path(key),
                node->items.size(), max_length);
    return std::nullopt;
  }
  std::vector<int64_t> out;
  bool good = true;
  for (const Node& item : node->items) {
    const std::optional<int64_t> value = integer(item, path(key), range);
    good = good && value.has_value();
    out.push_back(value.value_or(1));
  }
  if (!good) return std::nullopt;
  return out;
}

std::optional<int64_t> TableReader::bytes(std::string_view key) {
  const std::optional<std::string> written = text(key);
  if (!written) return std::nullopt;
  const std::optional<int64_t> size = parse_bytes(*written);
  if (!size) {
    diag_.error(Kind::out_of_range, at(key),
                "`{}` is not a size: \"{}\"; write it like \"512MiB\" or \"1.5GiB\"", path(key), *written);
  }
  return size;
}

void TableReader::finish() {
  const std::vector<std::string_view> known(known_.begin(), known_.end());
  for (const Entry& entry : table_.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    diag_.error(Kind::unknown_key, entry.key_at, "{} has no key `{}`{}", what_, entry.key,
                did_you_mean(entry.key, known));
  }
}

}  // namespace gacc::frontend
