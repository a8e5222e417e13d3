// The lexer of the textual IR: tokens with their places. Never fails; what it cannot read becomes a token
// `bad`.
#pragma once
#include <string>
#include <string_view>

#include "ir/diag.h"

namespace gacc::ir {

enum class Tok : uint8_t { end, word, value, buffer, text, integer, real, punctuation, bad };

struct Token {
  Tok kind = Tok::end;
  std::string text{};  // word and names without sigil or quotes; punctuation as it is; for bad: why
  double real = 0;
  int64_t integer = 0;
  Location at{};
};

bool is_letter(char c);  // of ASCII
bool name_char(char c);  // of a name that needs no quotes

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}
  Token next();

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  void advance();
  void skip_blank();
  std::string name();             // characters of a plain name
  bool quoted(std::string& out);  // a quoted string; false when it does not end or an escape is unknown
  Token number(Token token);

  std::string_view source_;
  size_t at_ = 0;
  int32_t line_ = 1, column_ = 1;
};

}  // namespace gacc::ir
