// The opcodes that the emulator accepts besides the arithmetic of lane_ops.h, as one table of forms: the decoder asks
// it before it reads an opcode, and the tests enumerate it, so nothing is accepted without a vector.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "emulator/program.h"

namespace gacc::emulator {

using Parts = std::vector<std::string_view>;  // of an opcode, between its dots
Parts split_opcode(std::string_view opcode);

// One position in a form: exactly one of `words`, or none where it is optional.
struct OpcodeSlot {
  std::vector<std::string_view> words;
  bool optional = false;
  bool hint = false;  // changes no value: caches, scopes, orders of memory
};
struct OpcodeForm {
  std::string_view root;
  std::vector<OpcodeSlot> slots;  // in the order in which the ISA writes them
};
const std::vector<OpcodeForm>& opcode_forms();

// Empty when a form has this spelling; else what of it is unknown: a modifier, or the whole opcode.
std::string unknown_part(const Parts& parts);

struct SpecialRegister {  // of 32 bits
  std::string_view name;  // "%tid.x"
  SpecialValue value;
};
const std::vector<SpecialRegister>& special_registers();

}  // namespace gacc::emulator
