#include "runtime/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace gacc {
namespace {

// Bytes of the UTF-8 character that `text` begins with; 0 where it begins with none.
size_t character_bytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  const size_t length = byte < 0x80   ? 1
                        : byte < 0xc2 ? 0
                        : byte < 0xe0 ? 2
                        : byte < 0xf0 ? 3
                        : byte < 0xf5 ? 4
                                      : 0;
  if (length > text.size()) return 0;
  const bool whole =
      std::all_of(text.begin() + 1, text.begin() + length, [](char c) { return (c & 0xc0) == 0x80; });
  return whole ? length : 0;
}

// Levenshtein distance with neighbouring letters swapped counting as one.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string in_quotes(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string result = "\"";
  size_t at = 0;
  while (at < std::min(text.size(), kMost)) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t length = character_bytes(text.substr(at));
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      if (byte == '"' || byte == '\\') result += '\\';
      result += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  if (text.size() > at) result += "...";
  return result + '"';
}

std::string listed(std::span<const std::string> words) {
  constexpr size_t kMost = 8;
  std::string result;
  const size_t shown = std::min(words.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) result += i + 1 == words.size() ? " and " : ", ";
    result += in_quotes(words[i]);
  }
  if (shown < words.size()) result += fmt::format(" and {} more", words.size() - shown);
  return result;
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

std::string hint(std::string_view word, std::span<const std::string> known) {
  if (word.size() > 64) return "";
  std::string_view best;
  size_t best_distance = word.size() / 3 + 2;  // further than that is another word
  for (const std::string& candidate : known) {
    if (candidate.size() > 64) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean {}?", in_quotes(best));
}

std::string problem_list(std::string_view what, std::span<const std::string> problems) {
  return problems.size() == 1 ? fmt::format("{}: {}", what, problems.front())
                              : fmt::format("{}:\n  {}", what, fmt::join(problems, "\n  "));
}

bool is_utf8(std::string_view text) {
  size_t length = 1;
  for (; !text.empty() && length > 0; text.remove_prefix(length)) length = character_bytes(text);
  return length > 0;
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string index_text(std::span<const int64_t> shape, int64_t element) {
  std::vector<int64_t> index(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; element /= shape[axis]) index[axis] = element % shape[axis];
  return shape_text(index);
}

bool parse_count(std::string_view text, int64_t& value) {
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace gacc
