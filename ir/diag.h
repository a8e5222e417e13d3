// Diagnostics: what is wrong, where, and what would be right. A Diag collects all reports of one file and
// renders them as `file:line:col: error: message [kind]` with the source line and a caret under it.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gacc {

// A place in the user's file. line and column count from 1; line 0 means "no place" (the file as a whole).
struct Location {
  int32_t line = 0;
  int32_t column = 0;
  int32_t length = 1;  // characters to underline
  // Set for text that is not in the file (`--set KEY=VALUE`): shown in the place of file:line:col.
  std::string origin{};
  bool operator==(const Location&) const = default;
};

enum class Kind : uint8_t {
#define X(name, text) name,
#include "ir/diag.def"
};
std::string_view kind_text(Kind kind);             // "shape-mismatch"
const std::vector<std::string_view>& all_kinds();  // in the order of diag.def, for the coverage test

struct Note {
  Location at;
  std::string text;
};

// One report. `note` adds the other half of the story and returns the report, so calls chain.
struct Report {
  Kind kind;
  Location at;
  std::string text;
  std::vector<Note> notes{};
  Report& note(const Location& where, std::string message) {
    notes.push_back({where, std::move(message)});
    return *this;
  }
};

class Diag {
 public:
  Diag() = default;
  // `source` is the whole text of the file, kept for the caret lines.
  Diag(std::string file, std::string source) : file_(std::move(file)), source_(std::move(source)) {}

  template <class... A>
  Report& error(Kind kind, const Location& at, fmt::format_string<A...> format, A&&... args) {
    reports_.push_back({kind, at, fmt::format(format, std::forward<A>(args)...)});
    return reports_.back();
  }

  // Something that is allowed, and hardly meant.
  template <class... A>
  Report& warn(Kind kind, const Location& at, fmt::format_string<A...> format, A&&... args) {
    warnings_.push_back({kind, at, fmt::format(format, std::forward<A>(args)...)});
    return warnings_.back();
  }

  bool failed() const { return !reports_.empty(); }
  const std::vector<Report>& reports() const { return reports_; }
  const std::string& file() const { return file_; }
  const std::string& source() const { return source_; }
  // All errors in file order, each with its source line and caret; "" when there are none.
  std::string render() const;
  std::string render_warnings() const;

 private:
  std::string file_, source_;
  std::vector<Report> reports_, warnings_;
};

// Ends the program with a mistake of ours, where nothing can report one.
[[noreturn]] void internal_error(std::string_view text);

// The known word nearest to `word` by edit distance, or "" when none is near enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string_view>& known);
// `; did you mean "relu"?` or "" — to append to a message about an unknown word.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace gacc
