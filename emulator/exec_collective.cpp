// Instructions that lanes or warps do together: shuffles, ballots, barriers.
#include <bit>
#include <cstring>

#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

// Every lane's mask must name the lane itself, and exactly lanes that execute this instruction together. False:
// not now, for lanes that are named may still come.
bool check_mask(Warp& warp, const Instr& in, int reg) {
  warp.check_defined(reg, in);
  const uint32_t* mask = words_of(warp, reg);
  uint32_t named = 0;
  for (const int l : LanesOf{warp.active}) named |= mask[l];
  if (warp.hold(named)) return false;
  for (const int l : LanesOf{warp.active}) {
    const uint32_t absent = mask[l] & ~warp.active;
    if (!(mask[l] >> l & 1))
      warp.report(Defect::bad_shuffle, in, l, "the mask 0x{:08x} does not name lane {} itself", mask[l], l);
    else if (absent)
      warp.report(Defect::bad_shuffle, in, l, "the mask 0x{:08x} names lane {}, which {}", mask[l],
                  first_lane(absent),
                  warp.live >> first_lane(absent) & 1 ? "does not execute this" : "has exited or never was");
  }
  return true;
}

}  // namespace

// d, [predicate in extra.registers], sources: value, lane or distance, clamp, mask.
void run_shuffle(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  for (int i = 1; i < 3; ++i) warp.check_defined(in.s[i], in);
  if (!check_mask(warp, in, in.s[3])) return;
  uint32_t value[kLanes], inside = 0;
  std::memcpy(value, warp.file + in.s_at[0], sizeof value);
  const uint32_t* b = warp.lanes<uint32_t>(in.s_at[1]);
  const uint32_t* c = warp.lanes<uint32_t>(in.s_at[2]);
  uint32_t* d = warp.lanes<uint32_t>(in.d_at);
  for (const int l : LanesOf{warp.active}) {
    const auto clamp = static_cast<int>(c[l] & 31), segment = static_cast<int>(c[l] >> 8 & 31),
               distance = static_cast<int>(b[l] & 31);
    const int bound = (l & segment) | (clamp & ~segment);
    int from = x.mode == up     ? l - distance
               : x.mode == down ? l + distance
               : x.mode == bfly ? l ^ distance
                                : (l & segment) | (distance & ~segment);
    const bool in_range = x.mode == up ? from >= bound : from <= bound;
    if (!in_range) from = l;
    inside |= static_cast<uint32_t>(in_range) << l;
    if (!(warp.active >> from & 1))
      warp.report(Defect::bad_shuffle, in, l, "lane {} reads lane {}, which does not execute this", l, from);
    else if (!(warp.defined[in.s[0]] >> from & 1))
      warp.check_defined(in.s[0], in);
    d[l] = value[from];
  }
  warp.defined[in.d] |= warp.active;
  if (x.registers.empty()) return;
  set_mask(*words_of(warp, x.registers[0]), inside, warp.active);
  warp.defined[x.registers[0]] |= warp.active;
}

// Sources: predicate, mask.
void run_ballot(Warp& warp, const Instr& in) {
  warp.check_defined(in.s[0], in);
  if (!check_mask(warp, in, in.s[1])) return;
  const uint32_t yes = *warp.lanes<uint32_t>(in.s_at[0]) & warp.active;
  const uint32_t* mask = warp.lanes<uint32_t>(in.s_at[1]);
  uint32_t* d = warp.lanes<uint32_t>(in.d_at);
  for (const int l : LanesOf{warp.active}) d[l] = yes & mask[l];
  warp.defined[in.d] |= warp.active;
}

void run_warp_barrier(Warp& warp, const Instr& in) { check_mask(warp, in, in.s[0]); }

// Sources: barrier, [threads]. Counts the group in; a sync waits until the block lets it go.
void run_barrier(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const int l = first_lane(warp.active);
  warp.check_defined(in.s[0], in);
  int which = static_cast<int>(warp.lanes<uint32_t>(in.s_at[0])[l] & 15);
  Barrier& barrier = warp.block->barriers[which];
  uint32_t together = warp.live & ~warp.waiting;
  if (x.aligned && warp.hold(together)) return;
  if (x.aligned && warp.active != together)
    warp.report(Defect::divergent_barrier, in, l,
                "lanes 0x{:08x} of 0x{:08x} reach barrier {}; lane {} does not", warp.active, together, which,
                first_lane(together & ~warp.active));
  if (in.s[1] >= 0) barrier.expected = static_cast<int>(warp.lanes<uint32_t>(in.s_at[1])[l]);
  barrier.lanes += std::popcount(warp.active);
  barrier.arrived += std::popcount(warp.active);
  if ((warp.active | warp.waiting) == warp.live) barrier.arrived += kLanes - std::popcount(warp.live);
  warp.launch->clocks.arrive(warp.actor(), barrier.gathered);
  ++warp.launch->counts.barriers;
  if (x.mode == bar_arrive) return;
  warp.waiting |= warp.active;
  warp.barrier = which;
  warp.waits_at = &in;
  warp.reconverge();
}

void Block::release_barriers() {
  int alive = 0;
  for (const Warp& warp : warps) alive += std::popcount(warp.live);
  for (int b = 0; b < 16; ++b) {
    Barrier& barrier = barriers[b];
    if (barrier.lanes == 0) continue;
    const bool complete = barrier.expected > 0 ? barrier.arrived >= barrier.expected : barrier.lanes >= alive;
    if (!complete) continue;
    for (Warp& warp : warps) {
      if (!warp.waiting || warp.barrier != b) continue;
      launch->clocks.leave(warp.actor(), barrier.gathered);
      warp.waiting = 0;
      if (warp.state == Warp::State::blocked) warp.state = Warp::State::ready;
    }
    barrier = {};
    launch->progress_at = launch->executed;
  }
}

}  // namespace gacc::emulator
