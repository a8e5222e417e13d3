// A kernel decoded for running: one Instr per PTX statement (a few for some), registers as slots in a warp's
// register file, constants and special registers as registers that are filled beforehand.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "emulator/lane_ops.h"
#include "emulator/ptx.h"

namespace gacc::emulator {

struct Warp;
struct Instr;
using Handler = void (*)(Warp&, const Instr&);

struct Slot {
  uint32_t at = 0;    // byte offset of lane 0 in the register file
  uint8_t bytes = 0;  // of one lane; kPredicate: the slot is one 32-bit mask
};

enum class Order : uint8_t { plain, relaxed, acquire, release, acq_rel };  // relaxed also stands for volatile
enum class AtomicOp : uint8_t { add, min, max, exch, cas, bit_and, bit_or, bit_xor, inc };

// What memory, collective and matrix instructions need beyond registers.
struct Extra {
  Space space = Space::generic;
  Order order = Order::plain;
  uint8_t bytes = 0;  // of one element
  uint8_t count = 1;  // elements: 1, 2, 4
  bool sign = false;  // a narrow load extends the sign
  AtomicOp atomic = AtomicOp::add;
  char type_class = 'b';  // u, s, f, b(its)
  uint8_t type_bits = 32;
  int base = -1;  // address register, or -1
  int64_t offset = 0;
  int base2 = -1;  // cp.async: the source's address
  int64_t offset2 = 0;
  int size = -1;  // cp.async: register with the number of bytes to copy, or -1
  // The vector operand; matrix fragments d, a, b, c one after another; -1: discarded.
  std::vector<int> registers;
  int mode = 0;  // shuffle, vote, barrier, reduction, matrix kind: see the handlers
  bool transposed = false;
  bool aligned = true;  // barrier.sync without .aligned may diverge
};

struct Instr {
  Handler run = nullptr;
  LaneFn lane = nullptr;
  int line = 0;
  int guard = -1;  // register id, or -1
  bool guard_negated = false;
  uint8_t sources = 0;
  int d = -1;  // register ids
  int s[4] = {-1, -1, -1, -1};
  uint32_t d_at = 0;  // their slots
  uint32_t s_at[4] = {};
  uint32_t target = 0;  // branches
  int extra = -1;       // into Program::extras
  uint64_t value = 0;
};

enum class Special : uint8_t {
#define GACC_SPECIAL(name, text, bytes, value) name,
#include "emulator/special_registers.def"
};

struct Program {
  std::string name;
  std::vector<Instr> code;         // ends with an exit
  std::vector<Slot> slots;         // by register id
  std::vector<std::string> names;  // of registers, for reports; "" for constants
  uint32_t file_bytes = 0;
  struct Constant {
    int reg;
    uint64_t value;
  };
  std::vector<Constant> constants;
  struct SpecialUse {
    int reg;
    Special which;
  };
  std::vector<SpecialUse> specials;
  std::vector<Extra> extras;
  std::vector<Variable> params;
  std::vector<int64_t> param_at;  // offsets in the parameter block
  int64_t param_bytes = 0;
  int64_t shared_bytes = 0;  // static
  int64_t local_bytes = 0;   // per thread
  int registers = 0;         // 32-bit registers the PTX declares and uses
  int max_threads = 0;       // .maxntid's product, or 0
};

// Addresses of the module's .global and .const variables.
using Symbols = std::map<std::string, uint64_t>;
// `module` gives the module-level .shared variables.
Status decode(const Function& function, const PtxFile& module, const Symbols& symbols, Program& program);

}  // namespace gacc::emulator
