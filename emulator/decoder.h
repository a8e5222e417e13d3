// The decoder's shared state: registers, constants, addresses of variables, and how instructions are emitted.
// The families live in decode_*.cpp.
#pragma once
#include <set>

#include "emulator/opcodes.h"
#include "emulator/program.h"
#include "emulator/warp.h"

namespace gacc::emulator {

class Decoder {
 public:
  Decoder(const Function& function, const PtxFile& module, const Symbols& symbols)
      : function_(function), module_(module), symbols_(symbols) {}
  Result<Kernel> run();

 private:
  using Kind = Operand::Kind;
  // decode.cpp
  void lay_out();
  void statement();
  void fail(std::string text);               // of the current statement
  bool accepted(const Parts& parts);         // else "unknown opcode or modifier `what` in `opcode`"
  bool operands(size_t least, size_t most);  // checks their number
  int add_slot(uint8_t bytes, std::string name);
  int temporary(uint8_t bytes) { return add_slot(bytes, "a temporary"); }
  int constant(uint8_t bytes, uint64_t value);
  int special(const std::string& name);
  uint8_t width(int reg) const { return kernel_.slots[reg].bytes; }
  // The place of a variable, in addresses of its own space; null after an error.
  struct Place {
    Space space;
    uint64_t address;
  };
  const Place* place_of(const std::string& name);
  // The register that holds an operand in lanes of `bytes`; wider registers are cut when `narrow`.
  int source(const Operand& operand, uint8_t bytes, bool narrow = false);
  // The register to write lanes of `bytes` into; `finish` then widens it into the operand where that is
  // larger.
  int destination(const Operand& operand, uint8_t bytes, bool widen = false);
  void finish(const Operand& operand, int reg, bool sign);
  Instr& emit(Handler handler, int d, const std::vector<int>& sources);
  Instr& emit(Handler handler, int d, const std::vector<int>& sources, Extra extra);
  void emit_lanes(const LaneOp& op, int d, const std::vector<int>& sources);
  Address address(const Operand& operand, Space space);
  uint64_t immediate(const Operand& operand);  // a literal, or an error
  static std::vector<Operand> elements_of(const Operand& operand) {
    return operand.kind == Kind::vector ? operand.elements : std::vector<Operand>{operand};
  }

  // decode_scalar.cpp
  void lanes(const LaneOp& op, bool convert);
  void set_predicate(const Parts&);
  void set_predicates_of_pairs(const LaneOp& op);
  void move(const Parts& parts);
  void cvta(const Parts& parts);
  void control(const Parts& parts);
  // decode_memory.cpp
  void access(const Parts& parts);
  void atomic(const Parts& parts);
  void fence(const Parts&) { emit(run_fence, -1, {}); }
  void copy_async(const Parts& parts);
  // decode_collective.cpp
  void shuffle(const Parts& parts);
  void ballot(const Parts&);
  void barrier(const Parts& parts);
  void matrix_load(const Parts& parts);
  void mma(const Parts& parts);

  const Function& function_;
  const PtxFile& module_;
  const Symbols& symbols_;
  Kernel kernel_;
  Status status_;
  const Statement* s_ = nullptr;  // the current one
  std::map<std::pair<uint8_t, uint64_t>, int> constants_;
  std::map<std::string, int> specials_;
  std::set<std::string_view> known_;  // opcodes that the table of forms has
  std::map<std::string, Place> places_;
};

}  // namespace gacc::emulator
