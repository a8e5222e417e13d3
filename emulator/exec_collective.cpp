// Instructions that lanes or warps do together: shuffles, votes, reductions over a warp, barriers.
#include <bit>
#include <cstring>

#include "emulator/exec.h"

namespace gacc::emulator {
namespace {

// Every lane's mask must name the lane itself, and exactly lanes that execute this instruction together now.
void check_mask(Warp& warp, const Instr& in, int reg) {
  warp.check_defined(reg, in);
  const uint32_t* mask = words_of(warp, reg);
  for (uint32_t m = warp.active; m; m &= m - 1) {
    int l = first_lane(m);
    uint32_t absent = mask[l] & ~warp.active;
    bool self = mask[l] >> l & 1;
    if (self && !absent) continue;
    Report* r = warp.report(Defect::bad_shuffle, in, l);
    if (!r) continue;
    if (!self)
      r->text = fmt::format("the mask 0x{:08x} does not name lane {} itself", mask[l], l);
    else
      r->text = fmt::format(
          "the mask 0x{:08x} names lane {}, which {}", mask[l], first_lane(absent),
          warp.live >> first_lane(absent) & 1 ? "does not execute this" : "has exited or never was");
  }
}

void put_predicate(Warp& warp, int reg, uint32_t bits) {
  uint32_t& p = *words_of(warp, reg);
  p = (p & ~warp.active) | (bits & warp.active);
  warp.defined[reg] |= warp.active;
}

}  // namespace

// d, [predicate in extra.registers], sources: value, lane or distance, clamp, mask.
void run_shuffle(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  for (int i = 1; i < 3; ++i) warp.check_defined(in.s[i], in);
  check_mask(warp, in, in.s[3]);
  uint32_t value[kLanes], result[kLanes], inside = 0;
  std::memcpy(value, warp.file + in.s_at[0], sizeof value);
  const uint32_t* b = warp.lanes<uint32_t>(in.s_at[1]);
  const uint32_t* c = warp.lanes<uint32_t>(in.s_at[2]);
  for (uint32_t m = warp.active; m; m &= m - 1) {
    int l = first_lane(m);
    uint32_t clamp = c[l] & 31, segment = c[l] >> 8 & 31, distance = b[l] & 31,
             lane = static_cast<uint32_t>(l);
    uint32_t top = (lane & segment) | (clamp & ~segment & 31), bottom = lane & segment;
    int from = 0;
    bool in_range = false;
    switch (x.mode) {
      case up:
        from = l - static_cast<int>(distance);
        in_range = from >= static_cast<int>(top);
        break;
      case down:
        from = l + static_cast<int>(distance);
        in_range = from <= static_cast<int>(top);
        break;
      case bfly:
        from = static_cast<int>(lane ^ distance);
        in_range = from <= static_cast<int>(top);
        break;
      default:
        from = static_cast<int>(bottom | (distance & ~segment & 31));
        in_range = from <= static_cast<int>(top);
    }
    if (!in_range) from = l;
    inside |= static_cast<uint32_t>(in_range) << l;
    if (!(warp.active >> from & 1)) {
      if (Report* r = warp.report(Defect::bad_shuffle, in, l))
        r->text = fmt::format("lane {} reads lane {}, which does not execute this", l, from);
    } else if (!(warp.defined[in.s[0]] >> from & 1)) {
      warp.check_defined(in.s[0], in);
    }
    result[l] = value[from];
  }
  uint32_t* d = warp.lanes<uint32_t>(in.d_at);
  for (uint32_t m = warp.active; m; m &= m - 1) d[first_lane(m)] = result[first_lane(m)];
  warp.defined[in.d] |= warp.active;
  if (!x.registers.empty()) put_predicate(warp, x.registers[0], inside);
}

// Sources: predicate, mask; value 1 negates the predicate.
void run_vote(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  warp.check_defined(in.s[0], in);
  check_mask(warp, in, in.s[1]);
  uint32_t p = *warp.lanes<uint32_t>(in.s_at[0]);
  if (in.value) p = ~p;
  const uint32_t* masks = warp.lanes<uint32_t>(in.s_at[1]);
  uint32_t bits = 0;
  for (uint32_t m = warp.active; m; m &= m - 1) {
    int l = first_lane(m);
    uint32_t members = masks[l] & warp.active, yes = p & members;
    if (x.mode == vote_ballot) warp.lanes<uint32_t>(in.d_at)[l] = yes;
    bool r = x.mode == vote_all ? yes == members : x.mode == vote_any ? yes != 0 : yes == 0 || yes == members;
    bits |= static_cast<uint32_t>(r) << l;
  }
  if (x.mode == vote_ballot)
    warp.defined[in.d] |= warp.active;
  else
    put_predicate(warp, in.d, bits);
}

void run_active_mask(Warp& warp, const Instr& in) {
  for (uint32_t m = warp.active; m; m &= m - 1) warp.lanes<uint32_t>(in.d_at)[first_lane(m)] = warp.active;
  warp.defined[in.d] |= warp.active;
}

void run_warp_barrier(Warp& warp, const Instr& in) { check_mask(warp, in, in.s[0]); }

// redux.sync and match.any.sync. Sources: value, mask.
void run_reduce(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  warp.check_defined(in.s[0], in);
  check_mask(warp, in, in.s[1]);
  uint32_t value[kLanes];
  std::memcpy(value, warp.file + in.s_at[0], sizeof value);
  const uint32_t* masks = warp.lanes<uint32_t>(in.s_at[1]);
  uint32_t result[kLanes] = {};
  for (uint32_t m = warp.active; m; m &= m - 1) {
    int l = first_lane(m);
    uint32_t members = masks[l] & warp.active;
    bool first = true;
    for (uint32_t n = members; n; n &= n - 1, first = false) {
      uint32_t v = value[first_lane(n)], &r = result[l];
      bool less = x.sign ? static_cast<int32_t>(v) < static_cast<int32_t>(r) : v < r;
      if (x.mode == match_any)
        r |= static_cast<uint32_t>(v == value[l]) << first_lane(n);
      else if (first)
        r = v;
      else if (x.mode == sum)
        r += v;
      else if (x.mode == minimum)
        r = less ? v : r;
      else if (x.mode == maximum)
        r = less ? r : v;
      else if (x.mode == bit_and)
        r &= v;
      else if (x.mode == bit_or)
        r |= v;
      else
        r ^= v;
    }
  }
  for (uint32_t m = warp.active; m; m &= m - 1)
    warp.lanes<uint32_t>(in.d_at)[first_lane(m)] = result[first_lane(m)];
  warp.defined[in.d] |= warp.active;
}

// Sources: barrier, [threads], of bar.red also the predicate (extra.base; value 1 negates it). Counts the
// group in; a sync waits until the block lets it go.
void run_barrier(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  int l = first_lane(warp.active);
  warp.check_defined(in.s[0], in);
  int which = static_cast<int>(warp.lanes<uint32_t>(in.s_at[0])[l] & 15);
  Barrier& barrier = warp.block->barriers[which];
  uint32_t together = warp.live & ~warp.waiting;
  if (x.aligned && warp.active != together && !warp.all_came) {
    for (uint32_t m = warp.active; m; m &= m - 1) warp.pcs[first_lane(m)] = warp.pc - 1;
    warp.held |= warp.active;
    warp.group &= ~warp.active;
    --warp.launch->executed;  // it comes here again
    warp.reconverge();
    return;
  }
  if (x.aligned && warp.active != together)
    if (Report* r = warp.report(Defect::divergent_barrier, in, l))
      r->text = fmt::format("lanes 0x{:08x} of 0x{:08x} reach barrier {}; lane {} does not", warp.active,
                            together, which, first_lane(together & ~warp.active));
  if (in.s[1] >= 0) barrier.expected = static_cast<int>(warp.lanes<uint32_t>(in.s_at[1])[l]);
  barrier.lanes += std::popcount(warp.active);
  barrier.arrived += std::popcount(warp.active);
  if ((warp.active | warp.waiting) == warp.live) barrier.arrived += kLanes - std::popcount(warp.live);
  warp.launch->clocks.arrive(warp.actor(), barrier.gathered);
  if (x.base >= 0) {
    warp.check_defined(x.base, in);
    uint32_t p = *words_of(warp, x.base);
    barrier.votes += std::popcount((in.value ? ~p : p) & warp.active);
  }
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
    bool complete = barrier.expected > 0 ? barrier.arrived >= barrier.expected : barrier.lanes >= alive;
    if (!complete) continue;
    for (Warp& warp : warps) {
      if (!warp.waiting || warp.barrier != b) continue;
      launch->clocks.leave(warp.actor(), barrier.gathered);
      const Instr& in = *warp.waits_at;
      const Extra& x = launch->program.extras[static_cast<size_t>(in.extra)];
      if (in.d >= 0) {  // bar.red: all get the result
        warp.active = warp.waiting;
        if (x.mode == red_popc) {
          for (uint32_t m = warp.active; m; m &= m - 1)
            warp.lanes<uint32_t>(in.d_at)[first_lane(m)] = static_cast<uint32_t>(barrier.votes);
          warp.defined[in.d] |= warp.active;
        } else {
          put_predicate(warp, in.d,
                        (x.mode == red_and ? barrier.votes == barrier.lanes : barrier.votes > 0) ? ~0u : 0);
        }
      }
      warp.waiting = 0;
      if (warp.state == Warp::State::blocked) warp.state = Warp::State::ready;
    }
    barrier = {};
    launch->progress_at = launch->executed;
  }
}

}  // namespace gacc::emulator
