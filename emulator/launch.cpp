// Runs blocks one after another, or interleaves all of them for a cooperative launch; detects deadlocks.
#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

constexpr int64_t kSliceInstructions = 20000;  // that a warp runs before another one is scheduled
// Warp instructions without any visible change after which a launch is taken to hang: so many, and more a warp.
constexpr uint64_t kIdleInstructions = 20'000'000, kIdleInstructionsPerWarp = 200'000;

const Instr& instruction_at(const Launch& launch, const Warp& warp) {
  return launch.kernel.code[std::min<size_t>(warp.pc, launch.kernel.code.size() - 1)];
}

// Ends a launch in which a warp has done more than any should need.
bool endless(Launch& launch, Warp& warp) {
  if (warp.executed <= launch.limit || warp.state == Warp::State::done) return false;
  warp.report(Defect::endless, instruction_at(launch, warp), first_lane(warp.group ? warp.group : warp.live),
              "warp {} has executed {} instructions and goes on", warp.index, warp.executed);
  launch.stopped = true;
  return true;
}

// Ends a launch whose warps spin or wait for ever.
void stuck(Launch& launch, std::vector<Block>& resident, bool spinning) {
  for (Block& block : resident)
    for (Warp& warp : block.warps) {
      const bool waits = warp.state == Warp::State::blocked;
      if (warp.state == Warp::State::done || waits == spinning) continue;
      if (waits)
        warp.report(Defect::deadlock, *warp.waits_at, first_lane(warp.waiting),
                    "warp {} waits at barrier {} and nobody else will come", warp.index, warp.barrier);
      else
        warp.report(Defect::deadlock, instruction_at(launch, warp),
                    first_lane(warp.group ? warp.group : warp.live),
                    "warp {} has been spinning while nothing changes", warp.index);
      launch.stopped = true;
      return;
    }
}

}  // namespace

void Block::prepare(Launch& of, int at) {
  launch = &of;
  place = at;
  threads = static_cast<int>(of.block.count());
  const auto count = static_cast<size_t>(of.warps());
  const Kernel& kernel = of.kernel;
  shared = std::make_unique<Region>(0, of.shared_bytes, "shared");
  const size_t each = (kernel.file_bytes + 63) & ~size_t{63};
  files.assign(count * each + 64, 0);
  defined.assign(count * kernel.slots.size(), 0);
  auto* base = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(files.data()) + 63) & ~uintptr_t{63});
  warps.resize(count);
  for (size_t w = 0; w < count; ++w) {
    Warp& warp = warps[w];
    warp.launch = launch;
    warp.block = this;
    warp.index = static_cast<int>(w);
    warp.file = base + w * each;
    warp.defined = defined.data() + w * kernel.slots.size();
    if (kernel.info.local_bytes > 0)
      warp.local = std::make_unique<Region>(0, kernel.info.local_bytes * kLanes, "local");
    for (const auto& [reg, value] : kernel.constants) {
      const Slot& slot = slot_of(warp, reg);
      if (slot.bytes == kPredicate) *words_of(warp, reg) = static_cast<uint32_t>(value);
      for (int l = 0; l < kLanes && slot.bytes != kPredicate; ++l) store_lane(warp, slot, l, value);
    }
  }
}

void Block::start(int number) {
  index = number;
  id = launch->grid.at(static_cast<uint32_t>(number));
  launch->clocks.begin(place, number, !launch->cooperative);
  begun = launch->clocks.next();
  shared->forget_written(0, shared->bytes());
  for (Barrier& barrier : barriers) barrier = {};
  std::ranges::fill(defined, 0u);
  for (Warp& warp : warps) {
    for (const auto& [reg, _] : launch->kernel.constants) warp.defined[reg] = ~0u;
    warp.fill_specials();
    if (warp.local) warp.local->forget_written(0, warp.local->bytes());
    const int here = threads - warp.index * kLanes;
    warp.start(here >= kLanes ? ~0u : (1u << here) - 1);
  }
}

bool Block::done() const {
  return std::ranges::all_of(warps, [](const Warp& w) { return w.state == Warp::State::done; });
}

void run_launch(Launch& launch) {
  auto blocks = static_cast<int64_t>(launch.grid.count());
  std::vector<Block> resident(static_cast<size_t>(launch.cooperative ? blocks : 1));
  if (!launch.clocks.restart(static_cast<int>(resident.size()), launch.warps()))
    for (auto& region : launch.memory.regions()) region->clear_accesses();
  launch.counts.longest_of_blocks.resize(static_cast<size_t>(blocks));
  int64_t next = 0;
  uint64_t warps = 0;
  for (Block& block : resident) {
    block.prepare(launch, static_cast<int>(next));
    block.start(static_cast<int>(next++));
    warps += block.warps.size();
  }
  size_t finished = 0;
  uint64_t polling_rounds = 0;  // in which every warp that ran only looked at memory, and nothing changed
  while (finished < resident.size() && !launch.stopped) {
    bool ran = false, polling = true;
    const uint64_t progress_before = launch.progress_at;
    for (Block& block : resident) {
      if (block.done()) continue;
      for (Warp& warp : block.warps) {
        if (warp.state != Warp::State::ready) continue;
        ran = true;
        warp.run(kSliceInstructions);
        polling = polling && warp.state == Warp::State::ready && warp.polls >= 8;
        if (launch.stopped || endless(launch, warp)) return;
      }
      block.release_barriers();
      if (!block.done()) continue;
      uint64_t& longest = launch.counts.longest_of_blocks[static_cast<size_t>(block.index)];
      for (const Warp& warp : block.warps) longest = std::max(longest, warp.executed);
      launch.counts.longest_warp = std::max(launch.counts.longest_warp, longest);
      if (next < blocks)
        block.start(static_cast<int>(next++));
      else
        ++finished;
    }
    if (finished == resident.size()) return;
    if (!ran) {
      const auto ready = [](const Warp& warp) { return warp.state == Warp::State::ready; };
      if (std::ranges::none_of(resident, [&](const Block& b) { return std::ranges::any_of(b.warps, ready); }))
        stuck(launch, resident, false);
      continue;
    }
    polling_rounds = polling && launch.progress_at == progress_before ? polling_rounds + 1 : 0;
    if (polling_rounds > 1000 + 100000 / warps ||
        launch.executed - launch.progress_at > kIdleInstructions + kIdleInstructionsPerWarp * warps)
      stuck(launch, resident, true);
  }
}

}  // namespace gacc::emulator
