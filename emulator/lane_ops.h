// The arithmetic of PTX as functions over 32 lanes. Each accepted spelling ("add.rn.ftz.f32") is one entry of
// a table; a spelling that is not in the table is not accepted. Lanes are arrays of their type's width; a
// predicate is a 32-bit mask. Nothing here knows warps or memory, so each entry can be tested alone.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gacc::emulator {

constexpr int kLanes = 32;
constexpr uint8_t kPredicate = 255;  // in place of a width: the operand is a mask

// Computes lanes of `mask`; the other lanes of `d` keep their values. `d` may be one of the sources.
using LaneFn = void (*)(void* d, const void* const* s, uint32_t mask);

struct LaneOp {
  std::string name;
  LaneFn fn = nullptr;
  uint8_t result = 0;      // bytes of a lane, or kPredicate
  uint8_t source[4] = {};  // likewise
  uint8_t sources = 0;
  bool divides = false;  // the second source must not be zero
};

// Receives the entries. A plain interface, so that files compiled for other instruction sets share no inline
// code.
struct LaneSink {
  virtual void add(const char* name, LaneFn fn, uint8_t result, const uint8_t* source, int sources,
                   bool divides = false) = 0;

 protected:
  ~LaneSink() = default;
};

// Null when the spelling is unknown. The table is made for the machine at first use.
const LaneOp* find_lane_op(std::string_view name);
std::vector<const LaneOp*> all_lane_ops();  // in order of their names

// The files that fill the table; int and float exist once for any x86-64 and once for AVX2 with FMA.
namespace base {
void add_integer_lanes(LaneSink& sink);
void add_float_lanes(LaneSink& sink);
}  // namespace base
namespace avx2 {
void add_integer_lanes(LaneSink& sink);
void add_float_lanes(LaneSink& sink);
}  // namespace avx2
void add_half_lanes(LaneSink& sink);
void add_convert_lanes(LaneSink& sink);

}  // namespace gacc::emulator
