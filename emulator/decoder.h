// The decoder's shared state: registers, constants, addresses of variables, and how instructions are emitted.
// The families live in decode_*.cpp.
#pragma once
#include <algorithm>
#include <set>

#include "emulator/exec.h"
#include "emulator/opcodes.h"
#include "emulator/program.h"

namespace gacc::emulator {

class Decoder {
 public:
  Decoder(const Function& function, const PtxFile& module, const Symbols& symbols, Program& program)
      : function_(function), module_(module), symbols_(symbols), program_(program) {}
  Status run();

 private:
  using Kind = Operand::Kind;
  // decode.cpp
  void lay_out();
  void statement(const Statement& s);
  void fail(std::string text);               // of the current statement
  bool accepted(const Parts& parts);         // else "unknown opcode or modifier `what` in `opcode`"
  bool operands(size_t least, size_t most);  // checks their number
  int add_slot(uint8_t bytes, std::string name);
  int temporary(uint8_t bytes) { return add_slot(bytes, "a temporary"); }
  int constant(uint8_t bytes, uint64_t value);
  int special(const std::string& name);
  uint8_t width(int reg) const { return program_.slots[static_cast<size_t>(reg)].bytes; }
  bool address_of(const std::string& name, Space& space, uint64_t& address) const;
  // The register that holds an operand in lanes of `bytes`; wider registers are cut when `narrow`.
  int source(const Operand& operand, uint8_t bytes, bool narrow = false);
  // The register to write lanes of `bytes` into; `finish` then widens it into the operand where that is
  // larger.
  int destination(const Operand& operand, uint8_t bytes, bool widen = false);
  void finish(const Operand& operand, int reg, bool sign);
  Instr& emit(Handler handler, int d, const std::vector<int>& sources);
  Instr& emit(Handler handler, int d, const std::vector<int>& sources, Extra extra);
  void emit_lanes(const LaneOp& op, int d, const std::vector<int>& sources);
  void set_address(const Operand& operand, Extra& x, bool second = false);
  uint64_t immediate(const Operand& operand);  // a literal, or an error
  static std::vector<Operand> elements_of(const Operand& operand) {
    return operand.kind == Kind::vector ? operand.elements : std::vector<Operand>{operand};
  }

  // decode_scalar.cpp
  bool scalar(const Parts& parts);  // false: not of this family
  void lanes(const LaneOp& op, bool convert);
  void set_predicate();
  void set_predicates_of_pairs(const LaneOp& op);
  void move(const Parts& parts);
  void address_conversion(const Parts& parts);
  bool control(const Parts& parts);  // false: not of this family
  // decode_memory.cpp
  bool memory(const Parts& parts);
  void access(const Parts& parts, bool load);
  void atomic(const Parts& parts, bool returns);
  void copy_async(const Parts& parts);
  // decode_collective.cpp
  void collective(const Parts& parts);
  void shuffle(const Parts& parts);
  void ballot();
  void barrier(const Parts& parts);
  void matrix_load(const Parts& parts);
  void mma();

  const Function& function_;
  const PtxFile& module_;
  const Symbols& symbols_;
  Program& program_;
  Status status_;
  const Statement* s_ = nullptr;  // the current one
  std::map<std::pair<uint8_t, uint64_t>, int> constants_;
  std::map<std::string, int> specials_;
  std::set<std::string_view> known_;  // opcodes that the table of forms has
  struct Place {
    Space space;
    uint64_t address;
  };
  std::map<std::string, Place> places_;  // shared, local and param variables
};

}  // namespace gacc::emulator
