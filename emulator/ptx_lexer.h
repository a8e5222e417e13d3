// PTX text as tokens, each with its line. Words keep their dots ("ld.param.u64", "%tid.x", "$L__BB0_2").
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc::emulator {

struct Token {
  enum class Kind : uint8_t { word, directive, number, string, punctuation, end };
  Kind kind = Kind::end;
  std::string_view text;
  int line = 0;
};

// The last token is `end`.
Status tokenize(std::string_view text, std::vector<Token>& tokens);

}  // namespace gacc::emulator
