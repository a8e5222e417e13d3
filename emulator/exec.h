// The handlers the decoder picks from, by family.
#pragma once
#include <algorithm>
#include <cstring>

#include "emulator/warp.h"

namespace gacc::emulator {

inline const Extra& extra_of(const Warp& warp, const Instr& in) {
  return warp.launch->kernel.extras[static_cast<size_t>(in.extra)];
}
inline const Slot& slot_of(const Warp& warp, int reg) {
  return warp.launch->kernel.slots[static_cast<size_t>(reg)];
}
// The lanes of a register of 32 bits, or the mask of a predicate.
inline uint32_t* words_of(Warp& warp, int reg) { return warp.lanes<uint32_t>(slot_of(warp, reg).at); }
// The bits of a lane, 8 bytes at most.
inline uint64_t load_lane(const Warp& warp, const Slot& slot, int l) {
  uint64_t bits = 0;
  std::memcpy(&bits, warp.file + slot.at + static_cast<size_t>(l) * slot.bytes, slot.bytes);
  return bits;
}
inline void store_lane(Warp& warp, const Slot& slot, int l, uint64_t bits) {
  std::memcpy(warp.file + slot.at + static_cast<size_t>(l) * slot.bytes, &bits, slot.bytes);
}
// Takes the bits that `lanes` name.
inline void set_mask(uint32_t& to, uint32_t from, uint32_t lanes) { to = (to & ~lanes) | (from & lanes); }
// An integer of so many bytes with its sign in all upper bits.
inline uint64_t extended(uint64_t bits, int bytes) {
  return bytes < 8 && bits >> (8 * bytes - 1) & 1 ? bits | ~uint64_t{0} << (8 * bytes) : bits;
}

// exec_memory.cpp
void run_load(Warp&, const Instr&);
void run_store(Warp&, const Instr&);
void run_copy_async(Warp&, const Instr&);
void run_copy_commit(Warp&, const Instr&);
void run_copy_wait(Warp&, const Instr&);
// exec_atomic.cpp
void run_atomic(Warp&, const Instr&);
void run_fence(Warp&, const Instr&);
// exec_scalar.cpp
template <int sources>
void run_lanes(Warp&, const Instr&);  // of 1 to 4
void run_divide(Warp&, const Instr&);
void run_move(Warp&, const Instr&);    // copies whether a lane was written, too
void run_resize(Warp&, const Instr&);  // value: 1 extends the sign
void run_pack(Warp&, const Instr&);
void run_unpack(Warp&, const Instr&);
void run_branch(Warp&, const Instr&);
void run_trap(Warp&, const Instr&);
// exec_collective.cpp; Extra::mode is one of these
enum Mode { up, down, bfly, idx, bar_sync, bar_arrive };
void run_shuffle(Warp&, const Instr&);
void run_ballot(Warp&, const Instr&);
void run_warp_barrier(Warp&, const Instr&);
void run_barrier(Warp&, const Instr&);
// exec_matrix.cpp
void run_load_matrix(Warp&, const Instr&);
void run_mma(Warp&, const Instr&);

}  // namespace gacc::emulator
