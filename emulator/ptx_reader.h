// PTX text as tokens, and what the parser of files, of declarations and of function bodies share. The first
// error is kept; readers then go on without effect, so callers look at the status once.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/ptx.h"

namespace gacc::emulator {

// Words keep their dots ("ld.param.u64", "%tid.x", "$L__BB0_2").
struct Token {
  enum class Kind : uint8_t { word, directive, number, string, punctuation, end };
  Kind kind = Kind::end;
  std::string_view text;
  int line = 0;
};
// The last token is `end`.
Result<std::vector<Token>> tokenize(std::string_view text);

class PtxReader {
 public:
  // `tokens` ends with the token `end` and outlives the reader.
  explicit PtxReader(const std::vector<Token>& tokens) : tokens_(tokens) {}

  const Status& status() const { return status_; }
  // Nothing was wrong so far, and there is more.
  bool go() const { return status_.ok() && peek().kind != Token::Kind::end; }

  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  bool is(std::string_view text) const { return peek().kind != Token::Kind::string && peek().text == text; }
  // Takes the next token if it is this one.
  bool accept(std::string_view text) {
    if (!is(text) || peek().kind == Token::Kind::end) return false;
    next();
    return true;
  }
  void expect(std::string_view text);
  void skip_line(int line);  // what is left of it, but no `}`

  std::string word();
  int64_t integer();
  // Literals: 12, 0x1F, 0b101, 017, 12U, 0f3F800000. The `-` before one was taken already.
  Operand number(bool negative);
  Type type_directive();

  void fail(int line, std::string text);
  void fail(const Token& token, std::string text) { fail(token.line, std::move(text)); }

 private:
  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  Status status_;
};

// ptx_parser.cpp. After .global, .const, .shared, .local: [.align N] .type name[[n]..] [= init] {, name…} ;
// `external` after `.extern`: the sizes come from elsewhere.
std::vector<Variable> read_variables(PtxReader& in, std::string_view directive, bool external);

// ptx_body.cpp. From `{` to its `}`: adds registers, variables (under names that are unique in the function)
// and statements. Registers are made at their first use, so `.reg .b32 %r<1000>` costs nothing. Names of
// registers, labels and variables are local to their { }.
void read_body(PtxReader& in, Function& function);

}  // namespace gacc::emulator
