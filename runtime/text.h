// Words for messages: names out of files, shown safely, and hints at what a misspelt word may have meant.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gacc {

// `text` in double quotes, with unprintable bytes as \xNN, cut when long: fit for a one-line message.
std::string in_quotes(std::string_view text);

// "a, b and c", each word in quotes; the 9th and later ones are counted.
std::string listed(std::span<const std::string> words);

// "WHAT: a" of one problem; of several "WHAT:" and a line for each.
std::string problem_list(std::string_view what, std::span<const std::string> problems);

// Returns the text with the letters A to Z as a to z.
std::string lower_case(std::string text);

// `; did you mean "image"?` when one of `known` is near to `word`, else "".
std::string hint(std::string_view word, std::span<const std::string> known);

bool is_utf8(std::string_view text);

// "[28, 28]"
std::string shape_text(std::span<const int64_t> shape);
// "[3, 14]": where the element of that number lies in a row-major array.
std::string index_text(std::span<const int64_t> shape, int64_t element);

// A whole non-negative decimal number, nothing else.
[[nodiscard]] bool parse_count(std::string_view text, int64_t& value);

}  // namespace gacc
