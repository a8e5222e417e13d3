// A kernel decoded for running: one Instr per PTX statement (a few for some), registers as slots in a warp's
// register file, constants and special registers as registers that are filled beforehand.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulator/lane_ops.h"
#include "emulator/ptx.h"
#include "emulator/report.h"

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

struct Address {
  int base = -1;  // a register's id, or -1
  int64_t offset = 0;
};

// The operands of memory, collective and matrix instructions beyond registers.
struct Extra {
  Space space = Space::generic;
  Order order = Order::plain;
  uint8_t bytes = 0;  // of one element
  uint8_t count = 1;  // elements: 1, 2, 4
  bool sign = false;  // of a signed type: a narrow load extends the sign
  bool real = false;  // atomic: of f32
  AtomicOp atomic = AtomicOp::add;
  Address at;
  Address from;   // cp.async: the source
  int size = -1;  // cp.async: register with the number of bytes to copy, or -1
  // The vector operand; matrix fragments d, a, b, c one after another; -1: discarded.
  std::vector<int> registers;
  int mode = 0;  // shuffle, barrier: see the handlers
  bool transposed = false;
  bool brain = false;   // mma: of bf16, not f16
  bool aligned = true;  // barrier.sync without .aligned may diverge
};

struct Instr {
  Handler run = nullptr;
  LaneFn lane = nullptr;
  int line = 0;
  int guard = -1;  // register id, or -1
  bool guard_negated = false;
  int d = -1;  // register ids
  int s[4] = {-1, -1, -1, -1};
  uint32_t d_at = 0;  // their slots
  uint32_t s_at[4] = {};
  uint32_t target = 0;  // branches
  int extra = -1;       // into Kernel::extras
  uint64_t value = 0;
};

// A block of threads and its place in the grid; what a special register holds in its thread `t`.
struct Geometry {
  Dim3 grid, block, at;
};
using SpecialValue = uint32_t (*)(const Geometry& of, uint32_t t);

struct KernelParam {
  std::string name, type;
  int64_t offset = 0, bytes = 0;  // in the parameter block
};
struct KernelInfo {
  std::string name;
  std::vector<KernelParam> params;
  int64_t param_bytes = 0;
  int registers = 0;         // 32-bit registers that the PTX names; what ptxas will need is its own affair
  int64_t shared_bytes = 0;  // static
  int64_t local_bytes = 0;   // per thread
  int max_threads = 0;       // .maxntid's product; 0: none
};

struct Kernel {
  KernelInfo info;
  std::vector<Instr> code;         // ends with an exit
  std::vector<Slot> slots;         // by register id
  std::vector<std::string> names;  // of registers, for reports
  uint32_t file_bytes = 0;
  std::vector<std::pair<int, uint64_t>> constants;  // registers and what they hold
  std::vector<std::pair<int, SpecialValue>> specials;
  std::vector<Extra> extras;
};

// Addresses of the module's .global and .const variables.
using Symbols = std::map<std::string, uint64_t>;
// `module` gives the module-level .shared variables.
Result<Kernel> decode(const Function& function, const PtxFile& module, const Symbols& symbols);

}  // namespace gacc::emulator
