// Arithmetic through lane functions, moves, packing and control flow.
#include <cstring>

#include "emulator/warp.h"

namespace gacc::emulator {

template <int n>
void run_lanes(Warp& warp, const Instr& in) {
  const void* sources[4];
  for (int i = 0; i < n; ++i) {
    if (warp.active & ~warp.defined[in.s[i]]) warp.check_defined(in.s[i], in);
    sources[i] = warp.file + in.s_at[i];
  }
  in.lane(warp.file + in.d_at, sources, warp.active);
  warp.defined[in.d] |= warp.active;
}
template void run_lanes<1>(Warp&, const Instr&);
template void run_lanes<2>(Warp&, const Instr&);
template void run_lanes<3>(Warp&, const Instr&);
template void run_lanes<4>(Warp&, const Instr&);

void run_divide(Warp& warp, const Instr& in) {
  const Slot& slot = slot_of(warp, in.s[1]);
  for (const int l : LanesOf{warp.active & warp.defined[in.s[1]]})
    if (load_lane(warp, slot, l) == 0) warp.report(Defect::division_by_zero, in, l, "the divisor is 0");
  run_lanes<2>(warp, in);
}

void run_move(Warp& warp, const Instr& in) {
  const Slot& slot = slot_of(warp, in.d);
  uint8_t* to = warp.file + in.d_at;
  const uint8_t* from = warp.file + in.s_at[0];
  if (slot.bytes == kPredicate) {
    set_mask(*words_of(warp, in.d), *words_of(warp, in.s[0]), warp.active);
  } else if (warp.active == ~0u) {
    std::memmove(to, from, static_cast<size_t>(slot.bytes) * kLanes);
  } else {
    for (const int l : LanesOf{warp.active}) {
      const size_t at = static_cast<size_t>(l) * slot.bytes;
      std::memmove(to + at, from + at, slot.bytes);
    }
  }
  set_mask(warp.defined[in.d], warp.defined[in.s[0]], warp.active);
}

void run_resize(Warp& warp, const Instr& in) {
  warp.check_defined(in.s[0], in);
  const Slot& to = slot_of(warp, in.d);
  const Slot& from = slot_of(warp, in.s[0]);
  for (const int l : LanesOf{warp.active}) {
    const uint64_t bits = load_lane(warp, from, l);
    store_lane(warp, to, l, in.value ? extended(bits, from.bytes) : bits);
  }
  warp.defined[in.d] |= warp.active;
}

void run_pack(Warp& warp, const Instr& in) {
  uint64_t packed[kLanes] = {};
  int shift = 0;
  uint32_t known = ~0u;
  for (const int reg : extra_of(warp, in).registers) {
    const Slot& from = slot_of(warp, reg);
    for (int l = 0; l < kLanes; ++l) packed[l] |= load_lane(warp, from, l) << shift;
    shift += 8 * from.bytes;
    known &= warp.defined[reg];
  }
  const Slot& to = slot_of(warp, in.d);
  for (const int l : LanesOf{warp.active}) store_lane(warp, to, l, packed[l]);
  set_mask(warp.defined[in.d], known, warp.active);
}

void run_unpack(Warp& warp, const Instr& in) {
  const std::vector<int>& registers = extra_of(warp, in).registers;
  const Slot& from = slot_of(warp, in.s[0]);
  const uint32_t known = warp.defined[in.s[0]];
  uint64_t packed[kLanes];
  for (int l = 0; l < kLanes; ++l) packed[l] = load_lane(warp, from, l);
  const size_t each = 8 * from.bytes / registers.size();
  for (size_t i = 0; i < registers.size(); ++i) {
    if (registers[i] < 0) continue;
    const Slot& to = slot_of(warp, registers[i]);
    for (const int l : LanesOf{warp.active}) store_lane(warp, to, l, packed[l] >> (i * each));
    set_mask(warp.defined[registers[i]], known, warp.active);
  }
}

void run_branch(Warp& warp, const Instr& in) {
  // A loop that never meets the lanes ahead of it gives them a turn now and then (see reconverge).
  const bool starving = warp.parked_from != ~0u && in.target < warp.pc && ++warp.backward > kStarving;
  if (warp.active == warp.group && !starving) {
    warp.pc = in.target;
    return;
  }
  const uint32_t stay = warp.group & ~warp.active;
  for (const int l : LanesOf{warp.active}) warp.pcs[l] = in.target;
  warp.group = stay;
  warp.reconverge();
}

void run_exit(Warp& warp, const Instr&) {
  warp.live &= ~warp.active;
  warp.group &= ~warp.active;
  warp.launch->progress_at = warp.launch->executed;
  warp.reconverge();
}

void run_trap(Warp& warp, const Instr& in) {
  warp.report(Defect::trap, in, first_lane(warp.active), "the kernel executed trap");
  warp.launch->stopped = true;
}

}  // namespace gacc::emulator
