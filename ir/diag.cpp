#include "ir/diag.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>

namespace gacc {

void internal_error(std::string_view text) {
  fmt::print(stderr, "internal error: {}\n", text);
  std::fflush(stderr);
  std::_Exit(3);
}

std::string_view kind_text(Kind kind) { return all_kinds()[static_cast<size_t>(kind)]; }

const std::vector<std::string_view>& all_kinds() {
  static const std::vector<std::string_view> texts = {
#define X(name, text) text,
#include "ir/diag.def"
  };
  return texts;
}

namespace {

// Line `number` (from 1) of `text`, without its end.
std::string_view line_of(std::string_view text, int32_t number) {
  size_t begin = 0;
  for (int32_t line = 1; line < number; ++line) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return {};
    begin = end + 1;
  }
  std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

// Returns the text as a terminal can show it, byte for byte: a question mark for each control character and for each
// byte that is no UTF-8. Tabs and line ends stay.
std::string printable(std::string_view text) {
  std::string out(text);
  for (size_t i = 0; i < out.size();) {
    const auto byte = static_cast<unsigned char>(out[i]);
    size_t length = byte < 0x80   ? 1
                    : byte < 0xC2 ? 0
                    : byte < 0xE0 ? 2
                    : byte < 0xF0 ? 3
                    : byte < 0xF5 ? 4
                                  : 0;
    if (length > out.size() - i || (byte < 0x20 && byte != '\t' && byte != '\n') || byte == 0x7F) length = 0;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(out[i + k]) & 0xC0U) != 0x80U) length = 0;
    if (length == 0) out[i] = '?', length = 1;
    i += length;
  }
  return out;
}

// At most 120 characters of a line, those around byte `at`. `at` becomes the byte's place among them.
std::string_view excerpt(std::string_view line, size_t& at) {
  constexpr size_t kColumns = 120, kBefore = 60;
  // Continuation bytes of UTF-8 belong to the character before them.
  const auto begins = [&](size_t i) { return (static_cast<unsigned char>(line[i]) & 0xC0U) != 0x80U; };
  const auto after = [&](size_t begin) {
    size_t end = begin, columns = 0;
    for (; end < line.size(); ++end)
      if (begins(end) && ++columns > kColumns) break;
    return end;
  };
  if (after(0) == line.size()) return line;
  size_t begin = std::min(at, line.size());
  for (size_t columns = 0; begin > 0 && columns < kBefore; columns += begins(begin) ? 1 : 0) --begin;
  at -= begin;
  return line.substr(begin, after(begin) - begin);
}

// "file:line:col: what: message" and, when the line is known, the line with a caret under it.
std::string render_at(const Diag& diag, const Location& at, std::string_view what, std::string_view message) {
  if (!at.origin.empty()) return fmt::format("{}: {}: {}\n", at.origin, what, message);
  if (at.line <= 0) return fmt::format("{}: {}: {}\n", diag.file(), what, message);
  std::string out = fmt::format("{}:{}:{}: {}: {}\n", diag.file(), at.line, at.column, what, message);
  const std::string whole = printable(line_of(diag.source(), at.line));
  if (whole.empty()) return out;
  size_t column = at.column > 0 ? static_cast<size_t>(at.column - 1) : 0;
  const std::string_view line = excerpt(whole, column);
  out += fmt::format("{:>5} | {}\n      | ", at.line, line);
  // Columns count bytes; tabs are kept and the continuation bytes of UTF-8 take no room, so that the caret
  // is under its character.
  const auto width = [&](size_t i) { return (static_cast<unsigned char>(line[i]) & 0xC0U) != 0x80U; };
  for (size_t i = 0; i < column && i < line.size(); ++i)
    if (line[i] == '\t')
      out += '\t';
    else if (width(i))
      out += ' ';
  out += '^';
  for (size_t i = column + 1; i < column + static_cast<size_t>(std::max(at.length, 1)) && i < line.size();
       ++i)
    if (width(i)) out += '~';
  out += '\n';
  return out;
}

std::string render_all(const Diag& diag, const std::vector<Report>& reports, std::string_view what) {
  std::vector<size_t> order(reports.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const Location &x = reports[a].at, &y = reports[b].at;
    return std::pair(x.line, x.column) < std::pair(y.line, y.column);
  });
  constexpr size_t kMost = 100;  // more are of no use to a reader
  std::string out;
  for (const size_t i : std::span(order).first(std::min(order.size(), kMost))) {
    const Report& report = reports[i];
    out += render_at(diag, report.at, what,
                     fmt::format("{} [{}]", printable(report.text), kind_text(report.kind)));
    for (const Note& note : report.notes) out += render_at(diag, note.at, "note", printable(note.text));
  }
  if (order.size() > kMost)
    out += fmt::format("{}: {} more {}s are not shown\n", diag.file(), order.size() - kMost, what);
  return out;
}

}  // namespace

std::string Diag::render() const { return render_all(*this, reports_, "error"); }
std::string Diag::render_warnings() const { return render_all(*this, warnings_, "warning"); }

namespace {

// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] =
          std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string_view>& known) {
  if (word.size() > 64) return "";                // no misspelt name, and the distance takes quadratic time
  const auto lower = [](std::string_view text) {  // "ReLU" is meant as "relu"
    std::string out(text);
    for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return out;
  };
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;  // further away is not what was meant
  // "gemma3" is rather meant as "gemma3_text" than as "gemma2".
  constexpr size_t kBeginning = 3;  // letters that a name's beginning has at least
  const auto begins = [&](std::string_view candidate) {
    return word.size() >= kBeginning && candidate.size() > word.size() && candidate.starts_with(word) &&
           candidate[word.size()] == '_';
  };
  for (const std::string_view candidate : known) {
    const size_t distance = begins(candidate) ? 0 : edit_distance(lower(word), lower(candidate));
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return std::string(best);
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near);
}

}  // namespace gacc
