// Drops comments and white space; copies nothing.
#include "emulator/ptx_reader.h"

#include <charconv>

namespace gacc::emulator {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
bool is_word(char c) { return is_letter(c) || is_digit(c); }

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view text) {
  std::vector<Token> tokens;
  size_t i = 0;
  int line = 1;
  auto at = [&](size_t k) { return k < text.size() ? text[k] : '\0'; };
  while (i < text.size()) {
    char c = text[i];
    if (std::string_view(" \t\r\n\f\v").find(c) != text.npos) {
      line += c == '\n';
      ++i;
      continue;
    }
    if (c == '/' && at(i + 1) == '/') {
      while (i < text.size() && text[i] != '\n') ++i;
      continue;
    }
    if (c == '/' && at(i + 1) == '*') {
      const size_t end = text.find("*/", i + 2);
      if (end == text.npos) return Status::error("line {}: a comment without its end", line);
      for (; i < end + 2; ++i) line += text[i] == '\n';
      continue;
    }
    const size_t start = i;
    Token token;
    token.line = line;
    if (c == '"') {
      i = text.find_first_of("\"\n", i + 1);
      if (at(i++) != '"') return Status::error("line {}: a string without its end", line);
      token.kind = Token::Kind::string;
    } else if (is_letter(c) || (c == '.' && is_letter(at(i + 1)))) {
      token.kind = c == '.' ? Token::Kind::directive : Token::Kind::word;
      // Dots and `::` join modifiers: ".shared::cta", ".L2::128B", "mov.u32", "%tid.x".
      for (++i; i < text.size(); ++i) {
        if (is_word(text[i]) || (text[i] == '.' && is_word(at(i + 1)))) continue;
        if (text[i] == ':' && at(i + 1) == ':' && is_word(at(i + 2))) {
          ++i;
          continue;
        }
        break;
      }
    } else if (is_digit(c)) {
      token.kind = Token::Kind::number;
      for (++i; is_word(at(i)) || at(i) == '.';) ++i;  // a version has a point
    } else if (std::string_view("{}()[]<>,;:@!|+-=*").find(c) != std::string_view::npos) {
      token.kind = Token::Kind::punctuation;
      ++i;
    } else {
      return Status::error("line {}: unexpected character 0x{:02x}", line, static_cast<unsigned char>(c));
    }
    token.text = text.substr(start, i - start);
    tokens.push_back(token);
  }
  tokens.push_back({Token::Kind::end, {}, line});
  return tokens;
}

bool parse_type(std::string_view name, Type& type) {
  struct Known {
    const char* name;
    int bits;
  };
  static constexpr Known known[] = {{"pred", 1}, {"b8", 8},   {"b16", 16},  {"b32", 32},   {"b64", 64},
                                    {"u8", 8},   {"u16", 16}, {"u32", 32},  {"u64", 64},   {"s8", 8},
                                    {"s16", 16}, {"s32", 32}, {"s64", 64},  {"f16", 16},   {"f16x2", 32},
                                    {"f32", 32}, {"f64", 64}, {"bf16", 16}, {"bf16x2", 32}};
  for (const Known& k : known)
    if (name == k.name) {
      type = {std::string(name), k.bits};
      return true;
    }
  return false;
}

void PtxReader::fail(int line, std::string text) {
  if (!status_.ok()) return;
  for (char& c : text)
    if (c == '\n' || c == '\0') c = '?';
  status_ = Status::error("line {}: {}", line, text);
}

void PtxReader::expect(std::string_view text) {
  if (!accept(text)) fail(peek(), fmt::format("expected `{}`, found `{}`", text, peek().text));
}

void PtxReader::skip_line(int line) {
  while (peek().kind != Token::Kind::end && peek().line == line && !is("}")) next();
}

std::string PtxReader::word() {
  if (peek().kind != Token::Kind::word) fail(peek(), fmt::format("expected a name, found `{}`", peek().text));
  return std::string(next().text);
}

int64_t PtxReader::integer() {
  const Operand value = number(accept("-"));
  if (value.kind != Operand::Kind::integer) fail(peek(), "expected an integer");
  return static_cast<int64_t>(value.bits);
}

Operand PtxReader::number(bool negative) {
  Operand value;
  const Token& token = next();
  if (token.kind != Token::Kind::number) {
    fail(token, fmt::format("expected a number, found `{}`", token.text));
    return value;
  }
  std::string_view digits = token.text;
  const char kind = digits.size() > 2 && digits[0] == '0' ? digits[1] : '\0';
  const bool real = kind == 'f' || kind == 'F', hex = kind == 'x' || kind == 'X',
             binary = kind == 'b' || kind == 'B';
  if (real || hex || binary) digits.remove_prefix(2);
  if (!real && !hex && digits.ends_with('U')) digits.remove_suffix(1);
  const int radix = real || hex ? 16 : binary ? 2 : digits.size() > 1 && digits[0] == '0' ? 8 : 10;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, value.bits, radix);
  if (error != std::errc{} || end != last || (real && digits.size() != 8))
    fail(token, fmt::format("`{}` is not a number", token.text));
  value.kind = real ? Operand::Kind::f32 : Operand::Kind::integer;
  if (negative) value.bits = real ? value.bits ^ 0x80000000u : ~value.bits + 1;
  return value;
}

Type PtxReader::type_directive() {
  Type type;
  const Token& token = next();
  if (token.text.size() < 2 || token.text[0] != '.' || !parse_type(token.text.substr(1), type))
    fail(token, fmt::format("expected a type, found `{}`", token.text));
  return type;
}

}  // namespace gacc::emulator
