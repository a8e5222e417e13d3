// A PTX file as parsed: variables, functions and their statements, with opcodes still as text. The decoder
// gives them meaning; an opcode unknown to it is reported with the line kept here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/status.h"

namespace gacc::emulator {

enum class Space : uint8_t { generic, global, shared, local, constant, param };

// A PTX type: "u32", "f16x2", "pred"…; `bits` is the width of the whole (f16x2: 32), 1 for a predicate.
struct Type {
  std::string name;
  int bits = 0;
  int bytes() const { return bits == 1 ? 0 : bits / 8; }
  bool is_signed() const { return !name.empty() && name[0] == 's'; }
};
// False when `name` is no PTX type.
bool parse_type(std::string_view name, Type& type);

struct Register {
  std::string name;
  Type type;
};

struct Operand {
  enum class Kind : uint8_t { reg, integer, f32, symbol, special, memory, vector, label, discard };
  Kind kind = Kind::discard;
  int reg = -1;                     // reg; memory: the base, or -1
  bool negated = false;             // !%p
  uint64_t bits = 0;                // integer, f32: the pattern
  int64_t offset = 0;               // memory, symbol
  std::string name{};               // symbol, special ("%tid.x"), memory with a symbol base, label
  int target = -1;                  // label: the statement's index
  std::vector<Operand> elements{};  // vector
};

struct Statement {
  int line = 0;
  std::string opcode;  // "add.rn.f32"
  int guard = -1;      // register, or -1
  bool guard_negated = false;
  std::vector<Operand> operands;
};

struct Variable {
  std::string name{};
  Space space = Space::global;
  Type type;
  int64_t align = 1;
  int64_t bytes = 0;
  bool external = false;  // .extern .shared x[]: the launch gives the size
  std::string initial{};  // the first bytes; the rest is zero
  int line = 0;
};

struct Function {
  std::string name;
  int line = 0;
  std::vector<Variable> params;
  std::vector<Register> registers;
  std::vector<Variable> variables;  // .local and .shared declared in the body
  std::vector<Statement> statements;
  int max_threads = 0;  // .maxntid's product, or 0
};

struct PtxFile {
  std::vector<Variable> variables;
  std::vector<Function> functions;
};

// Reads any bytes; an error names the line and what was found there.
Result<PtxFile> parse_ptx(std::string_view text);

}  // namespace gacc::emulator
