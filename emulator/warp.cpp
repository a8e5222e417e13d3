// The dispatch loop of a warp: lanes with the least pc run together until their pc reaches that of the
// others.
#include "emulator/warp.h"

#include <algorithm>

namespace gacc::emulator {

void Warp::start(uint32_t lanes_mask) {
  *this = {launch, block, index, file, defined, std::move(local)};
  live = lanes_mask;
  reconverge();
}

void Warp::reconverge() {
  for (const int l : LanesOf{group}) pcs[l] = pc;
  group = 0;
  parked_from = ~0u;
  uint32_t runnable = live & ~waiting;
  if (!runnable) {
    state = live ? State::blocked : State::done;
    return;
  }
  all_came = (runnable & ~held) == 0;
  if (all_came) held = 0;
  runnable &= ~held;
  uint32_t best = ~0u, worst = 0;
  for (const int l : LanesOf{runnable}) {
    best = std::min(best, pcs[l]);
    worst = std::max(worst, pcs[l]);
  }
  const bool starving = backward > kStarving;  // e.g. lanes spin for a lock that a lane ahead of them holds
  if (starving) best = worst, backward = 0;
  for (const int l : LanesOf{runnable}) {
    if (pcs[l] == best)
      group |= 1u << l;
    else if (!starving)
      parked_from = std::min(parked_from, pcs[l]);
  }
  if (parked_from == ~0u && !starving) backward = 0;
  pc = best;
}

bool Warp::hold(uint32_t others) {
  if (all_came || (others & live & ~waiting & ~active) == 0) return false;
  for (const int l : LanesOf{active}) pcs[l] = pc - 1;
  held |= active;
  group &= ~active;
  --launch->executed;
  reconverge();
  return true;
}

void Warp::run(int64_t budget) {
  const Instr* code = launch->kernel.code.data();
  const uint64_t before = launch->executed;
  polls = 0;
  if (state == State::ready) reconverge();
  while (state == State::ready && budget-- > 0 && polls < 8) {
    if (pc >= parked_from) reconverge();
    const Instr& in = code[pc++];
    ++launch->executed;
    active = group;
    if (in.guard >= 0) {
      const uint32_t p = *lanes<uint32_t>(launch->kernel.slots[in.guard].at);
      check_defined(in.guard, in);
      active &= in.guard_negated ? ~p : p;
      if (!active) continue;
    }
    in.run(*this, in);
    if (launch->stopped) return;
  }
  executed += launch->executed - before;
}

Report* Warp::new_report(Defect defect, const Instr& in, int lane) {
  Report* report = launch->reports.add(defect, launch->kernel.info.name, in.line);
  if (!report) return nullptr;
  report->block = block->id;
  report->thread = launch->block.at(thread_of(lane));
  return report;
}

void Warp::check_defined(int reg, const Instr& in) {
  uint32_t& known = defined[reg];
  const uint32_t missing = active & ~known;
  if (!missing) return;
  report(Defect::uninitialised_register, in, first_lane(missing), "{} was not written",
         launch->kernel.names[reg]);
  known |= missing;  // once is enough
}

void Warp::fill_specials() {
  const Geometry geometry{launch->grid, launch->block, block->id};
  for (const auto& [reg, value] : launch->kernel.specials) {
    uint32_t* const to = lanes<uint32_t>(launch->kernel.slots[reg].at);
    for (int l = 0; l < kLanes; ++l) to[l] = value(geometry, thread_of(l));
    defined[reg] = ~0u;
  }
}

}  // namespace gacc::emulator
