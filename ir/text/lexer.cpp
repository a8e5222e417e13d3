#include "ir/text/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace gacc::ir {

namespace {
bool is_digit(char c) { return c >= '0' && c <= '9'; }
}  // namespace

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool name_char(char c) {
  return is_letter(c) || is_digit(c) || std::string_view("_.-/$").find(c) != std::string_view::npos;
}

void Lexer::advance() {
  if (source_[at_] == '\n')
    ++line_, column_ = 1;
  else
    ++column_;
  ++at_;
}

void Lexer::skip_blank() {
  while (at_ < source_.size()) {
    if (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')
      advance();
    else if (peek() == '/' && peek(1) == '/')
      while (at_ < source_.size() && peek() != '\n') advance();
    else
      return;
  }
}

std::string Lexer::name() {
  const size_t begin = at_;
  while (at_ < source_.size() && name_char(peek()) && !(peek() == '/' && peek(1) == '/')) advance();
  return std::string(source_.substr(begin, at_ - begin));
}

bool Lexer::quoted(std::string& out) {
  advance();  // the opening quote
  while (at_ < source_.size() && peek() != '\n') {
    const char c = peek();
    advance();
    if (c == '"') return true;
    if (c != '\\') {
      out += c;
      continue;
    }
    const char escape = peek();
    if (escape == '"' || escape == '\\') {
      out += escape;
    } else if (escape == 'n') {
      out += '\n';
    } else if (escape == 'x') {
      unsigned code = 0;
      if (at_ + 3 > source_.size()) return false;
      const char* first = source_.data() + at_ + 1;
      if (std::from_chars(first, first + 2, code, 16).ptr != first + 2) return false;
      out += static_cast<char>(code);
      advance(), advance();
    } else {
      return false;
    }
    advance();
  }
  return false;
}

Token Lexer::number(Token token) {
  const size_t begin = at_;
  bool real = false;
  if (peek() == '-') advance();
  while (is_digit(peek()) || peek() == '.' || peek() == 'e' ||
         ((peek() == '-' || peek() == '+') && source_[at_ - 1] == 'e')) {
    real = real || !is_digit(peek());
    advance();
  }
  const std::string_view text = source_.substr(begin, at_ - begin);
  token.text = text;
  const char* end = text.data() + text.size();
  if (text == "-" && (source_.substr(at_, 3) == "inf")) {
    advance(), advance(), advance();
    token.kind = Tok::real, token.text = "-inf", token.real = -std::numeric_limits<double>::infinity();
    return token;
  }
  if (text == "-") {  // alone: "no offset"
    token.kind = Tok::punctuation;
    return token;
  }
  token.kind = real ? Tok::real : Tok::integer;
  const auto result =
      real ? std::from_chars(text.data(), end, token.real) : std::from_chars(text.data(), end, token.integer);
  if (result.ec != std::errc() || result.ptr != end)
    token.kind = Tok::bad, token.text = fmt::format("`{}` is not a number that fits", text);
  if (!real) token.real = static_cast<double>(token.integer);
  return token;
}

Token Lexer::next() {
  skip_blank();
  Token token;
  token.at = {.line = line_, .column = column_};
  const size_t begin = at_;
  if (at_ >= source_.size()) return token;
  const char c = peek();
  if (c == '%' || c == '@' || c == '"') {
    token.kind = c == '%' ? Tok::value : c == '@' ? Tok::buffer : Tok::text;
    if (c != '"') advance();
    if (peek() == '"') {
      if (!quoted(token.text))
        token.kind = Tok::bad, token.text = "this string does not end, or has an unknown escape";
    } else {
      token.text = name();
      if (token.text.empty()) token.kind = Tok::bad, token.text = fmt::format("a name must follow `{}`", c);
    }
  } else if (is_letter(c)) {
    token.kind = Tok::word;
    token.text = name();
    if (token.text == "inf" || token.text == "nan") {
      token.kind = Tok::real;
      token.real = token.text == "inf" ? std::numeric_limits<double>::infinity() : std::nan("");
    }
  } else if (is_digit(c) || c == '-') {
    token = number(token);
  } else if (std::string_view("(){}[],:=").find(c) != std::string_view::npos) {
    token.kind = Tok::punctuation, token.text = c;
    advance();
  } else {
    token.kind = Tok::bad;
    token.text = fmt::format("unexpected character `{}`",
                             static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? "?" : std::string(1, c));
    advance();
  }
  token.at.length = static_cast<int32_t>(std::max<size_t>(1, at_ - begin));
  return token;
}

}  // namespace gacc::ir
