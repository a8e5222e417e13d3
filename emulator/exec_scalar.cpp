// Arithmetic through lane functions, moves, packing and control flow.
#include <cstring>

#include "emulator/exec.h"

namespace gacc::emulator {
namespace {

template <int n>
inline void lanes(Warp& warp, const Instr& in) {
  const void* sources[4];
  for (int i = 0; i < n; ++i) {
    if (warp.active & ~warp.defined[in.s[i]]) warp.check_defined(in.s[i], in);
    sources[i] = warp.file + in.s_at[i];
  }
  in.lane(warp.file + in.d_at, sources, warp.active);
  warp.defined[in.d] |= warp.active;
}

}  // namespace

void run_lanes1(Warp& warp, const Instr& in) { lanes<1>(warp, in); }
void run_lanes2(Warp& warp, const Instr& in) { lanes<2>(warp, in); }
void run_lanes3(Warp& warp, const Instr& in) { lanes<3>(warp, in); }
void run_lanes4(Warp& warp, const Instr& in) { lanes<4>(warp, in); }

void run_divide(Warp& warp, const Instr& in) {
  const Slot& slot = slot_of(warp, in.s[1]);
  for (uint32_t m = warp.active & warp.defined[in.s[1]]; m; m &= m - 1) {
    const int l = first_lane(m);
    if (load_lane(warp, slot, l) == 0)
      if (Report* r = warp.report(Defect::division_by_zero, in, l)) r->text = "the divisor is 0";
  }
  lanes<2>(warp, in);
}

void run_move(Warp& warp, const Instr& in) {
  const Slot& slot = slot_of(warp, in.d);
  uint8_t* to = warp.file + in.d_at;
  const uint8_t* from = warp.file + in.s_at[0];
  if (slot.bytes == kPredicate) {
    uint32_t v, old;
    std::memcpy(&v, from, 4);
    std::memcpy(&old, to, 4);
    v = (old & ~warp.active) | (v & warp.active);
    std::memcpy(to, &v, 4);
  } else if (warp.active == ~0u) {
    std::memmove(to, from, static_cast<size_t>(slot.bytes) * kLanes);
  } else {
    for (uint32_t m = warp.active; m; m &= m - 1) {
      const size_t at = static_cast<size_t>(first_lane(m)) * slot.bytes;
      std::memmove(to + at, from + at, slot.bytes);
    }
  }
  warp.defined[in.d] = (warp.defined[in.d] & ~warp.active) | (warp.defined[in.s[0]] & warp.active);
}

void run_resize(Warp& warp, const Instr& in) {
  warp.check_defined(in.s[0], in);
  const Slot& to = slot_of(warp, in.d);
  const Slot& from = slot_of(warp, in.s[0]);
  for (uint32_t m = warp.active; m; m &= m - 1) {
    const int l = first_lane(m);
    const uint64_t bits = load_lane(warp, from, l);
    store_lane(warp, to, l, in.value ? extended(bits, from.bytes) : bits);
  }
  warp.defined[in.d] |= warp.active;
}

void run_pack(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const Slot& to = slot_of(warp, in.d);
  uint8_t staged[kLanes][16];
  size_t at = 0;
  uint32_t known = ~0u;
  for (const int reg : x.registers) {
    const Slot& from = slot_of(warp, reg);
    for (size_t l = 0; l < kLanes; ++l)
      std::memcpy(staged[l] + at, warp.file + from.at + l * from.bytes, from.bytes);
    at += from.bytes;
    known &= warp.defined[reg];
  }
  for (uint32_t m = warp.active; m; m &= m - 1) {
    auto l = static_cast<size_t>(first_lane(m));
    std::memcpy(warp.file + to.at + l * to.bytes, staged[l], to.bytes);
  }
  warp.defined[in.d] = (warp.defined[in.d] & ~warp.active) | (known & warp.active);
}

void run_unpack(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const Slot& from = slot_of(warp, in.s[0]);
  const uint32_t known = warp.defined[in.s[0]];
  uint8_t staged[kLanes * 16];
  std::memcpy(staged, warp.file + from.at, static_cast<size_t>(from.bytes) * kLanes);
  size_t at = 0, each = from.bytes / x.registers.size();
  for (const int reg : x.registers) {
    if (reg >= 0) {
      const Slot& to = slot_of(warp, reg);
      for (uint32_t m = warp.active; m; m &= m - 1) {
        auto l = static_cast<size_t>(first_lane(m));
        std::memcpy(warp.file + to.at + l * to.bytes, staged + l * from.bytes + at, to.bytes);
      }
      warp.defined[reg] = (warp.defined[reg] & ~warp.active) | (known & warp.active);
    }
    at += each;
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
  for (uint32_t m = warp.active; m; m &= m - 1) warp.pcs[first_lane(m)] = in.target;
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
  if (Report* r = warp.report(Defect::trap, in, first_lane(warp.active)))
    r->text = "the kernel executed trap";
  warp.launch->stopped = true;
}

}  // namespace gacc::emulator
