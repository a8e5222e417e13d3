// Splits PTX into tokens. Comments and white space go; nothing is copied.
#include "emulator/ptx_reader.h"

namespace gacc::emulator {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
bool is_word(char c) { return is_letter(c) || is_digit(c); }

}  // namespace

Status tokenize(std::string_view text, std::vector<Token>& tokens) {
  size_t i = 0;
  int line = 1;
  auto at = [&](size_t k) { return k < text.size() ? text[k] : '\0'; };
  while (i < text.size()) {
    char c = text[i];
    if (c == '\n') {
      ++line, ++i;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
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
      for (++i; i < text.size() && text[i] != '"' && text[i] != '\n'; ++i) {
      }
      if (at(i) != '"') return Status::error("line {}: a string without its end", line);
      ++i;
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
  return {};
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

}  // namespace gacc::emulator
