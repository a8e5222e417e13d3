// Reads TOML with toml++ and copies it into Nodes. toml++ is compiled into this file, so that its limits are
// ours and the sanitizers see it; its exceptions end here.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 64
#include "frontend/toml_tree.h"

#include <toml++/toml.h>

#include <algorithm>
#include <exception>

namespace gacc::frontend {

namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;  // of a model file
constexpr int kMaxKeyDots = 40;  // of one dotted key; with the nesting limit this bounds the tree's depth

// Where each line starts, to turn the library's columns (code points) into ours (bytes).
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {
    for (size_t i = 0; i <= text.size(); i = text.find('\n', i) + 1) {
      starts_.push_back(i);
      if (text.find('\n', i) == std::string_view::npos) break;
    }
  }

  // [begin, end), cut at the end of the first line.
  Location location(const toml::source_region& region) const {
    const auto line = static_cast<size_t>(region.begin.line);
    if (line < 1 || line > starts_.size()) return {};
    const size_t begin = byte(line, region.begin.column);
    const size_t end = region.end.line == region.begin.line ? byte(line, region.end.column) : line_end(line);
    const size_t start = starts_[line - 1];
    return {.line = static_cast<int32_t>(line),
            .column = static_cast<int32_t>(begin - start + 1),
            .length = static_cast<int32_t>(end > begin ? end - begin : 1)};
  }
  Location location(size_t byte) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), byte);
    return {.line = static_cast<int32_t>(next - starts_.begin()),
            .column = static_cast<int32_t>(byte - *(next - 1) + 1)};
  }

 private:
  size_t line_end(size_t line) const {
    const size_t end = text_.find('\n', starts_[line - 1]);
    return end == std::string_view::npos ? text_.size() : end;
  }
  // Byte offset of code point `column` (from 1) of a line; past its end, the end.
  size_t byte(size_t line, size_t column) const {
    size_t at = starts_[line - 1];
    const size_t end = line_end(line);
    if (line == 1 && text_.substr(0, 3) == "\xEF\xBB\xBF") at += 3;  // the mark that the library skips
    for (; column > 1 && at < end; --column) {
      do ++at;
      while (at < end && (static_cast<unsigned char>(text_[at]) & 0xC0U) == 0x80U);
    }
    return at;
  }

  std::string_view text_;
  std::vector<size_t> starts_;
};

Node convert(const toml::node& from, const Lines& lines) {
  Node node;
  node.at = lines.location(from.source());
  switch (from.type()) {
    case toml::node_type::string:
      node.form = Node::Form::text;
      node.text = **from.as_string();
      break;
    case toml::node_type::integer:
      node.form = Node::Form::integer;
      node.integer = **from.as_integer();
      break;
    case toml::node_type::floating_point:
      node.form = Node::Form::real;
      node.real = **from.as_floating_point();
      break;
    case toml::node_type::boolean:
      node.form = Node::Form::flag;
      node.flag = **from.as_boolean();
      break;
    case toml::node_type::array:
      node.form = Node::Form::list;
      for (const toml::node& item : *from.as_array()) node.items.push_back(convert(item, lines));
      break;
    case toml::node_type::table:
      node.form = Node::Form::table;
      for (const auto& [key, value] : *from.as_table()) {
        node.entries.push_back({std::string(key.str()), lines.location(key.source()), convert(value, lines)});
      }
      // The library sorts by key; the order of the file matters (the first [inputs.*] table feeds the model).
      std::stable_sort(node.entries.begin(), node.entries.end(), [](const Entry& a, const Entry& b) {
        return std::pair(a.key_at.line, a.key_at.column) < std::pair(b.key_at.line, b.key_at.column);
      });
      break;
    default:
      node.form = Node::Form::date;
      break;
  }
  return node;
}

// What the library must not see, found by a scan that knows strings and comments and nothing else:
// - keys of very many dotted parts, over which it recurses without a limit;
// - characters outside ASCII that stand neither in quotes nor in a comment, where no TOML has them:
// version 3.3
//   reaches undefined behaviour when it asks whether some of them are blanks.
struct Refusal {
  size_t at;
  std::string_view why;
};
std::optional<Refusal> refuse(std::string_view text) {
  int dots = 0;
  size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      dots = 0;
    } else if (c == '"' || c == '\'') {
      const std::string three(3, c);
      const bool multi = text.substr(i, 3) == three;
      i += multi ? 3 : 1;
      for (; i < text.size(); ++i) {
        if (c == '"' && text[i] == '\\')
          ++i;
        else if (multi ? text.substr(i, 3) == three : text[i] == c || text[i] == '\n')
          break;
      }
      if (!multi) continue;
      i += 2;
      for (int more = 0; more < 2 && i + 1 < text.size() && text[i + 1] == c; ++more)
        ++i;  // """"" ends in two quotes
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return Refusal{i, "a character outside ASCII must stand in quotes"};
    } else if (c == '.') {
      if (++dots > kMaxKeyDots) return Refusal{i, "a key of too many dotted parts"};
    } else if (c == '=' || c == ',' || c == '\n' || c == '[' || c == ']' || c == '{' || c == '}') {
      dots = 0;
    }
  }
  return std::nullopt;
}

// "Error while parsing key-value pair: expected value, saw '\n'" -> "expected value, saw '\n', in a key-value
// pair".
std::string reworded(std::string_view text) {
  constexpr std::string_view kPrefix = "Error while parsing ";
  if (text.substr(0, kPrefix.size()) != kPrefix) return std::string(text);
  text.remove_prefix(kPrefix.size());
  const size_t colon = text.find(": ");
  if (colon == std::string_view::npos) return std::string(text);
  return fmt::format("{} (in a {})", text.substr(colon + 2), text.substr(0, colon));
}

void place_everywhere(Node& node, const Location& at) {
  node.at = at;
  for (Node& item : node.items) place_everywhere(item, at);
  for (Entry& entry : node.entries) {
    entry.key_at = at;
    place_everywhere(entry.value, at);
  }
}

bool bare_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80 ||
           std::string_view("_-+.:/").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

}  // namespace

const Node* Node::find(std::string_view key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}
Node* Node::find(std::string_view key) { return const_cast<Node*>(std::as_const(*this).find(key)); }

std::string_view form_text(Node::Form form) {
  switch (form) {
    case Node::Form::text:
      return "a string";
    case Node::Form::integer:
      return "an integer";
    case Node::Form::real:
      return "a real number";
    case Node::Form::flag:
      return "a boolean";
    case Node::Form::date:
      return "a date or time";
    case Node::Form::list:
      return "an array";
    case Node::Form::table:
      return "a table";
  }
  return "?";
}

std::optional<Node> parse_toml(std::string_view text, Diag& diag) {
  const Lines lines(text);
  if (text.size() > kMaxBytes) {
    diag.error(Kind::syntax, {}, "a model file of {} bytes is too long; the limit is {} bytes", text.size(),
               kMaxBytes);
    return std::nullopt;
  }
  if (const std::optional<Refusal> refusal = refuse(text)) {
    diag.error(Kind::syntax, lines.location(refusal->at), "{}", refusal->why);
    return std::nullopt;
  }
  try {
    return convert(toml::parse(text, std::string_view()), lines);
  } catch (const toml::parse_error& error) {
    diag.error(Kind::syntax, lines.location(error.source()), "{}", reworded(error.description()));
  } catch (const std::exception& error) {
    diag.error(Kind::syntax, {}, "{}", error.what());
  }
  return std::nullopt;
}

std::optional<Node> parse_value(std::string_view text, const Location& at) {
  Diag quiet;
  std::optional<Node> parsed = parse_toml(fmt::format("value = {}", text), quiet);
  Node value;
  if (parsed && parsed->entries.size() == 1) {
    value = std::move(parsed->entries.front().value);
  } else if (!parsed && bare_word(text)) {
    value.form = Node::Form::text;
    value.text = text;
  } else {
    return std::nullopt;
  }
  place_everywhere(value, at);
  return value;
}

}  // namespace gacc::frontend
