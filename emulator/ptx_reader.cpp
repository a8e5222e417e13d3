#include "emulator/ptx_reader.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace gacc::emulator {

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

// All of `digits`, which are `wanted` many (0: any number).
uint64_t PtxReader::hexadecimal(const Token& token, std::string_view digits, size_t wanted) {
  uint64_t bits = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, bits, 16);
  if (error != std::errc{} || end != last || (wanted != 0 && digits.size() != wanted))
    fail(token, fmt::format("`{}` is not a number", token.text));
  return bits;
}

Operand PtxReader::number(bool negative) {
  Operand value;
  const Token& token = next();
  std::string text(token.text);
  if (token.kind != Token::Kind::number) {
    fail(token, fmt::format("expected a number, found `{}`", text));
    return value;
  }
  const char kind = text.size() > 2 && text[0] == '0' ? text[1] : '\0';
  if (kind == 'f' || kind == 'F') {
    value.kind = Operand::Kind::f32;
    value.bits = hexadecimal(token, std::string_view(text).substr(2), 8) ^ (negative ? 0x80000000u : 0);
  } else {
    if (text.back() == 'U') text.pop_back();
    value.kind = Operand::Kind::integer;
    if (kind == 'x' || kind == 'X') {
      value.bits = hexadecimal(token, std::string_view(text).substr(2), 0);
    } else {
      const int radix = kind == 'b' || kind == 'B' ? 2 : text.size() > 1 && text[0] == '0' ? 8 : 10;
      const char* from = text.data() + (radix == 2 ? 2 : 0);
      auto [end, error] = std::from_chars(from, text.data() + text.size(), value.bits, radix);
      if (error != std::errc{} || end != text.data() + text.size())
        fail(token, fmt::format("`{}` is not a number", text));
    }
    if (negative) value.bits = ~value.bits + 1;
  }
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
