// ld, st, ld.param and cp.async, with all checks of an access: bounds, declared ranges, alignment,
// initialisation, races.
#include "emulator/warp.h"

#include <cstring>

namespace gacc::emulator {
namespace {

Space resolve(Space space, uint64_t& address) {
  if (space != Space::generic) return space;
  for (auto [window, inside] : {std::pair{kSharedWindow, Space::shared}, {kLocalWindow, Space::local}})
    if (address >= window && address - window < kWindowSize) {
      address -= window;
      return inside;
    }
  return Space::global;
}

// Describes the target of an access, for messages.
std::string describe(const Warp& warp, const Place& place) {
  const auto offset = static_cast<int64_t>(place.address);
  if (place.space == Space::shared || place.space == Space::local)
    return fmt::format("offset {} of {}", offset,
                       counted(place.space == Space::shared ? warp.launch->shared_bytes
                                                            : warp.launch->kernel.info.local_bytes,
                               "byte"));
  Region* region = warp.launch->memory.nearest(place.address);
  if (!region) return fmt::format("address 0x{:x} in no allocation", place.address);
  const int64_t at = region->offset(place.address);
  const std::string range = at < region->bytes() ? region->range_before(at) : "";
  return fmt::format("offset {} of `{}` ({}){}{}", at, region->name(), counted(region->bytes(), "byte"),
                     range.empty() ? "" : ", after ", range);
}
std::string describe(const Warp& warp, const Place& place, int bytes) {
  return fmt::format("{} of {} memory at {}", counted(bytes, "byte"),
                     place.space == Space::shared     ? "shared"
                     : place.space == Space::local    ? "local"
                     : place.space == Space::constant ? "constant"
                                                      : "global",
                     describe(warp, place));
}

// The warp that made the other access of a race.
std::string who(const Warp& warp, uint32_t other) {
  const auto warps = static_cast<uint32_t>(warp.launch->warps());
  if (other / warps == static_cast<uint32_t>(warp.block->index)) return fmt::format("warp {}", other % warps);
  return fmt::format("block {}", other / warps);
}

}  // namespace

std::array<uint64_t, kLanes> addresses_of(Warp& warp, const Instr& in, const Address& address) {
  std::array<uint64_t, kLanes> all;
  const auto offset = static_cast<uint64_t>(address.offset);
  if (address.base < 0) {
    all.fill(offset);
    return all;
  }
  warp.check_defined(address.base, in);
  const Slot& slot = slot_of(warp, address.base);
  if (slot.bytes == 8) {
    const uint64_t* base = warp.lanes<uint64_t>(slot.at);
    for (size_t l = 0; l < kLanes; ++l) all[l] = base[l] + offset;
  } else {  // 32-bit addresses of shared and local memory wrap
    const uint32_t* base = warp.lanes<uint32_t>(slot.at);
    for (size_t l = 0; l < kLanes; ++l) all[l] = base[l] + static_cast<uint32_t>(offset);
  }
  return all;
}

bool locate(Warp& warp, const Instr& in, Space space, uint64_t address, int bytes, int lane, Place& place) {
  place.space = resolve(space, address);
  place.address = address;
  place.by = {&warp.launch->clocks, warp.actor(), warp.launch->clocks.base()};
  bool good = true;
  if (address % static_cast<uint64_t>(bytes)) {
    warp.report(Defect::misaligned, in, lane, "{}", describe(warp, place, bytes));
    return false;
  }
  if (place.space == Space::shared) {
    place.region = warp.block->shared.get();
    place.by.base = warp.block->begun;
    place.at = static_cast<int64_t>(address);
    good = place.region->covers(address, bytes);
  } else if (place.space == Space::local) {
    const int64_t size = warp.launch->kernel.info.local_bytes;
    place.region = warp.local.get();
    place.by.clocks = nullptr;
    good = address < static_cast<uint64_t>(size) && size - static_cast<int64_t>(address) >= bytes;
    place.at = static_cast<int64_t>(address) + lane * size;
  } else {
    place.region = warp.launch->memory.find(address, bytes);
    if (place.region) place.at = place.region->offset(address);
    good = place.region && place.region->all(place.at, bytes, kLive);
  }
  if (!good) warp.report(Defect::out_of_bounds, in, lane, "{}", describe(warp, place, bytes));
  return good;
}

void check_written(Warp& warp, const Instr& in, const Place& place, int bytes, int lane) {
  if (!place.region->all(place.at, bytes, kWritten))
    warp.report(Defect::uninitialised_memory, in, lane, "{}", describe(warp, place, bytes));
}

void note(Warp& warp, const Instr& in, const Place& place, int bytes, int lane, bool write, bool atomic) {
  if (!place.by.clocks) return;
  const Conflict conflict = write ? place.region->note<true>(place.at, bytes, place.by, atomic)
                                  : place.region->note<false>(place.at, bytes, place.by, atomic);
  if (!conflict.race) return;
  const Defect race = place.space == Space::shared ? Defect::shared_race : Defect::global_race;
  warp.report(race, in, lane, "{} at {} after a {} by {} without a barrier between", write ? "write" : "read",
              describe(warp, place), conflict.with_write ? "write" : "read", who(warp, conflict.warp));
}

void publish(Warp& warp, uint64_t address) {
  warp.launch->clocks.release(warp.actor(), warp.launch->published[address]);
}
void learn(Warp& warp, uint64_t address, bool acquire) {
  auto found = warp.launch->published.find(address);
  if (found == warp.launch->published.end()) return;
  if (acquire) return warp.launch->clocks.acquire(warp.actor(), found->second);
  Clocks::join(warp.seen, found->second);
}

void run_load(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const auto address = addresses_of(warp, in, x.at);
  const int total = x.bytes * x.count;
  const bool atomic = x.order != Order::plain;
  uint8_t staged[kLanes][16] = {};
  for (const int l : LanesOf{warp.active}) {
    if (x.space == Space::param) {
      std::memcpy(staged[l], warp.launch->params.data() + x.at.offset, static_cast<size_t>(total));
      continue;
    }
    Place place;
    if (!locate(warp, in, x.space, address[l], total, l, place)) continue;
    check_written(warp, in, place, total, l);
    if (atomic && place.space == Space::global) learn(warp, address[l], x.order >= Order::acquire);
    note(warp, in, place, total, l, false, atomic);
    if (place.space == Space::global && !atomic)
      ++warp.launch->counts.loads, warp.launch->counts.loaded_bytes += static_cast<uint64_t>(total);
    std::memcpy(staged[l], place.region->data() + place.at, static_cast<size_t>(total));
  }
  if (atomic) ++warp.polls;
  for (int e = 0; e < x.count; ++e) {
    const int reg = x.registers[e];
    if (reg < 0) continue;
    const Slot& slot = slot_of(warp, reg);
    for (const int l : LanesOf{warp.active}) {
      uint64_t v = 0;
      std::memcpy(&v, staged[l] + e * x.bytes, x.bytes);
      store_lane(warp, slot, l, x.sign ? extended(v, x.bytes) : v);
    }
    warp.defined[reg] |= warp.active;
  }
}

void run_store(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const auto address = addresses_of(warp, in, x.at);
  for (const int reg : x.registers) warp.check_defined(reg, in);
  const int total = x.bytes * x.count;
  const bool atomic = x.order != Order::plain;
  for (const int l : LanesOf{warp.active}) {
    uint8_t staged[16];
    for (int e = 0; e < x.count; ++e) {
      const Slot& slot = slot_of(warp, x.registers[e]);
      std::memcpy(staged + e * x.bytes, warp.file + slot.at + static_cast<size_t>(l) * slot.bytes, x.bytes);
    }
    Place place;
    if (!locate(warp, in, x.space, address[l], total, l, place)) continue;
    if (atomic && place.space == Space::global && (x.order >= Order::release || warp.fenced))
      publish(warp, address[l]);
    note(warp, in, place, total, l, true, atomic);
    if (place.space == Space::global && !atomic)
      ++warp.launch->counts.stores, warp.launch->counts.stored_bytes += static_cast<uint64_t>(total);
    uint8_t* to = place.region->data() + place.at;
    if (std::memcmp(to, staged, static_cast<size_t>(total)) != 0) {
      // Two lanes of one instruction with different values for one place: the winner is not defined.
      uint32_t other = place.space == Space::shared && !atomic ? warp.active & ((1u << l) - 1) : 0;
      while (other && address[first_lane(other)] != address[l]) other &= other - 1;
      if (other)
        warp.report(Defect::shared_race, in, l, "lanes {} and {} write different values to {}",
                    first_lane(other), l, describe(warp, place));
      std::memcpy(to, staged, static_cast<size_t>(total));
      if (place.by.clocks) warp.launch->progress_at = warp.launch->executed;
    }
    place.region->mark_written(place.at, total);
  }
}

// cp.async reads its source at once but writes when it is waited for; until then its bytes count as
// unwritten.
void run_copy_async(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const auto to = addresses_of(warp, in, x.at), from = addresses_of(warp, in, x.from);
  for (const int l : LanesOf{warp.active}) {
    int take = x.bytes;
    if (x.size >= 0) take = static_cast<int>(std::min<uint32_t>(words_of(warp, x.size)[l], x.bytes));
    PendingCopy copy;
    copy.count = x.bytes;
    copy.lane = static_cast<uint8_t>(l);
    Place source, target;
    if (!locate(warp, in, Space::shared, to[l], x.bytes, l, target)) continue;
    if (take > 0) {
      if (!locate(warp, in, Space::global, from[l], x.bytes, l, source)) continue;
      check_written(warp, in, source, take, l);
      note(warp, in, source, take, l, false, false);
      ++warp.launch->counts.copies, warp.launch->counts.copied_bytes += static_cast<uint64_t>(take);
      std::memcpy(copy.bytes, source.region->data() + source.at, static_cast<size_t>(take));
    }
    copy.to = target.at;
    note(warp, in, target, x.bytes, l, true, false);
    target.region->forget_written(target.at, x.bytes);
    warp.copies.push_back(copy);
  }
}
void run_copy_commit(Warp& warp, const Instr&) {
  warp.copy_groups.push_back(std::move(warp.copies));
  warp.copies.clear();
}
// value: groups that may stay pending; ~0: wait for everything, committed or not.
void run_copy_wait(Warp& warp, const Instr& in) {
  if (in.value == ~uint64_t{0}) run_copy_commit(warp, in);
  const size_t keep = in.value == ~uint64_t{0} ? 0 : static_cast<size_t>(in.value);
  while (warp.copy_groups.size() > keep) {
    for (const PendingCopy& copy : warp.copy_groups.front()) {
      std::memcpy(warp.block->shared->data() + copy.to, copy.bytes, copy.count);
      warp.block->shared->mark_written(copy.to, copy.count);
      const Toucher by{&warp.launch->clocks, warp.actor(), warp.block->begun};
      const Place place{warp.block->shared.get(), copy.to, static_cast<uint64_t>(copy.to), by, Space::shared};
      note(warp, in, place, copy.count, copy.lane, true, false);
    }
    warp.copy_groups.pop_front();
    warp.launch->progress_at = warp.launch->executed;
  }
}

}  // namespace gacc::emulator
