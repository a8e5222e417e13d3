// Runs blocks one after another, or interleaves all of them for a cooperative launch; detects deadlocks.
#include <algorithm>
#include <cstring>

#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

constexpr int64_t kSliceInstructions = 20000;  // that a warp runs before another one is scheduled
// Warp instructions without any visible change after which a launch is taken to hang: so many, and more a warp.
constexpr uint64_t kIdleInstructions = 20'000'000, kIdleInstructionsPerWarp = 200'000;

const Instr& instruction_at(const Launch& launch, const Warp& warp) {
  return launch.program.code[std::min<size_t>(warp.pc, launch.program.code.size() - 1)];
}

// Ends a launch in which a warp has done more than any should need.
bool endless(Launch& launch, Warp& warp) {
  if (warp.executed <= launch.limit || warp.state == Warp::State::done) return false;
  const int lane = first_lane(warp.group ? warp.group : warp.live);
  if (Report* r = warp.report(Defect::endless, instruction_at(launch, warp), lane))
    r->text = fmt::format("warp {} has executed {} instructions and goes on", warp.index, warp.executed);
  launch.stopped = true;
  return true;
}

bool stuck(Launch& launch, std::vector<std::unique_ptr<Block>>& resident, bool spinning) {
  for (auto& block : resident)
    for (Warp& warp : block->warps) {
      if (warp.state == Warp::State::done) continue;
      const bool waits = warp.state == Warp::State::blocked;
      if (waits == spinning) continue;
      const Instr& in = waits ? *warp.waits_at : instruction_at(launch, warp);
      const int lane = first_lane(waits ? warp.waiting : warp.group ? warp.group : warp.live);
      if (Report* r = warp.report(Defect::deadlock, in, lane))
        r->text = waits ? fmt::format("warp {} waits at barrier {} and nobody else will come", warp.index,
                                      warp.barrier)
                        : fmt::format("warp {} has been spinning while nothing changes", warp.index);
      launch.stopped = true;
      return true;
    }
  return false;
}

}  // namespace

void Block::prepare(Launch& of, int at) {
  launch = &of;
  place = at;
  threads = static_cast<int>(of.block.count());
  const auto count = static_cast<size_t>(of.warps());
  const Program& program = of.program;
  shared = std::make_unique<Region>(0, of.shared_bytes, "shared", true);
  const size_t each = (program.file_bytes + 63) & ~size_t{63};
  files.assign(count * each + 64, 0);
  defined.assign(count * program.slots.size(), 0);
  auto* base = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(files.data()) + 63) & ~uintptr_t{63});
  warps.resize(count);
  for (size_t w = 0; w < count; ++w) {
    Warp& warp = warps[w];
    warp.launch = launch;
    warp.block = this;
    warp.index = static_cast<int>(w);
    warp.file = base + w * each;
    warp.defined = defined.data() + w * program.slots.size();
    if (program.local_bytes > 0)
      warp.local = std::make_unique<Region>(0, program.local_bytes * kLanes, "local", true);
    for (const Program::Constant& constant : program.constants) {
      const Slot& slot = program.slots[static_cast<size_t>(constant.reg)];
      if (slot.bytes == kPredicate)
        std::memcpy(warp.file + slot.at, &constant.value, 4);
      else
        for (size_t l = 0; l < kLanes; ++l)
          std::memcpy(warp.file + slot.at + l * slot.bytes, &constant.value, std::min<size_t>(8, slot.bytes));
    }
  }
}

void Block::start(int number, const Dim3& at) {
  index = number;
  id = at;
  launch->clocks.begin(place, number, !launch->cooperative);
  begun = launch->clocks.next();
  shared->reset_written();
  for (Barrier& barrier : barriers) barrier = {};
  std::fill(defined.begin(), defined.end(), 0u);
  for (Warp& warp : warps) {
    for (const auto& constant : launch->program.constants) warp.defined[constant.reg] = ~0u;
    for (const auto& special : launch->program.specials) warp.defined[special.reg] = ~0u;
    warp.fill_specials();
    if (warp.local) warp.local->reset_written();
    const int here = threads - warp.index * kLanes;
    warp.start(here >= kLanes ? ~0u : (1u << here) - 1);
  }
}

bool Block::done() const {
  return std::all_of(warps.begin(), warps.end(), [](const Warp& w) { return w.state == Warp::State::done; });
}

void run_launch(Launch& launch) {
  auto blocks = static_cast<int64_t>(launch.grid.count());
  std::vector<std::unique_ptr<Block>> resident(static_cast<size_t>(launch.cooperative ? blocks : 1));
  if (!launch.clocks.restart(static_cast<int>(resident.size()), launch.warps()))
    for (auto& region : launch.memory.regions()) region->clear_accesses();
  auto id_of = [&](int64_t i) {
    const Dim3& g = launch.grid;
    return Dim3{static_cast<uint32_t>(i % g.x), static_cast<uint32_t>(i / g.x % g.y),
                static_cast<uint32_t>(i / g.x / g.y)};
  };
  int64_t next = 0;
  uint64_t warps = 0;
  for (auto& block : resident) {
    block = std::make_unique<Block>();
    block->prepare(launch, static_cast<int>(next));
    block->start(static_cast<int>(next), id_of(next));
    warps += block->warps.size();
    ++next;
  }
  size_t finished = 0;
  uint64_t polling_rounds = 0;  // in which every warp that ran only looked at memory, and nothing changed
  while (finished < resident.size() && !launch.stopped) {
    bool ran = false, polling = true;
    const uint64_t progress_before = launch.progress_at;
    for (auto& block : resident) {
      if (block->done()) continue;
      for (Warp& warp : block->warps) {
        if (warp.state != Warp::State::ready) continue;
        ran = true;
        warp.run(kSliceInstructions);
        polling = polling && warp.state == Warp::State::ready && warp.polls >= 8;
        if (launch.stopped || endless(launch, warp)) return;
      }
      block->release_barriers();
      if (!block->done()) continue;
      for (const Warp& warp : block->warps)
        launch.counts.longest_warp = std::max(launch.counts.longest_warp, warp.executed);
      if (next < blocks) {
        block->start(static_cast<int>(next), id_of(next));
        ++next;
      } else {
        ++finished;
      }
    }
    if (finished == resident.size()) return;
    if (!ran) {
      const bool ready = std::any_of(resident.begin(), resident.end(), [](const auto& block) {
        return std::any_of(block->warps.begin(), block->warps.end(),
                           [](const Warp& w) { return w.state == Warp::State::ready; });
      });
      if (!ready) stuck(launch, resident, false);
      continue;
    }
    polling_rounds = polling && launch.progress_at == progress_before ? polling_rounds + 1 : 0;
    if (polling_rounds > 1000 + 100000 / warps ||
        launch.executed - launch.progress_at > kIdleInstructions + kIdleInstructionsPerWarp * warps)
      stuck(launch, resident, true);
  }
}

}  // namespace gacc::emulator
