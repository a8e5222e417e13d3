// ld, st, ld.param and cp.async, with all checks of an access: bounds, declared ranges, alignment,
// initialisation, races.
#include "emulator/exec.h"

#include <cstring>

namespace gacc::emulator {
namespace {

const char* space_name(Space space) {
  switch (space) {
    case Space::shared:
      return "shared memory";
    case Space::local:
      return "local memory";
    case Space::constant:
      return "constant memory";
    case Space::param:
      return "the parameters";
    default:
      return "global memory";
  }
}

Space resolve(Space space, uint64_t& address) {
  if (space != Space::generic) return space;
  for (auto [window, inside] : {std::pair{kSharedWindow, Space::shared}, {kLocalWindow, Space::local}})
    if (address >= window && address - window < kWindowSize) {
      address -= window;
      return inside;
    }
  return Space::global;
}

// Where a wrong address lies, for the message.
std::string describe(Warp& warp, Space space, uint64_t address) {
  if (space == Space::shared)
    return fmt::format("offset {} of {}", static_cast<int64_t>(address),
                       counted(warp.launch->shared_bytes, "byte"));
  if (space == Space::local)
    return fmt::format("offset {} of {}", static_cast<int64_t>(address),
                       counted(warp.launch->program.local_bytes, "byte"));
  if (space == Space::param) return fmt::format("offset {}", static_cast<int64_t>(address));
  Region* region = warp.launch->memory.nearest(address);
  if (!region) return fmt::format("address 0x{:x} in no allocation", address);
  int64_t at = static_cast<int64_t>(address - region->base());
  std::string range = at < region->bytes() ? region->range_before(at) : "";
  return fmt::format("offset {} of `{}` ({}){}{}", at, region->name(), counted(region->bytes(), "byte"),
                     range.empty() ? "" : ", after ", range);
}

// The warp that made the other access of a race.
std::string who(const Warp& warp, uint32_t other) {
  const auto warps = static_cast<uint32_t>(warp.launch->warps());
  if (other / warps == static_cast<uint32_t>(warp.block->index)) return fmt::format("warp {}", other % warps);
  return fmt::format("block {}", other / warps);
}

}  // namespace

void addresses_of(Warp& warp, int base, int64_t offset, uint64_t* out) {
  if (base < 0) {
    for (int l = 0; l < kLanes; ++l) out[l] = static_cast<uint64_t>(offset);
    return;
  }
  const Slot& slot = slot_of(warp, base);
  if (slot.bytes == 8) {
    const uint64_t* a = warp.lanes<uint64_t>(slot.at);
    for (int l = 0; l < kLanes; ++l) out[l] = a[l] + static_cast<uint64_t>(offset);
  } else {  // 32-bit addresses of shared and local memory wrap
    const uint32_t* a = warp.lanes<uint32_t>(slot.at);
    for (int l = 0; l < kLanes; ++l) out[l] = static_cast<uint32_t>(a[l] + static_cast<uint32_t>(offset));
  }
}

bool locate(Warp& warp, const Instr& in, Space space, uint64_t address, int bytes, int lane, Place& place) {
  space = resolve(space, address);
  place.space = space;
  place.by = {&warp.launch->clocks, warp.actor(), warp.launch->clocks.base()};
  if (address % static_cast<uint64_t>(bytes)) {
    if (Report* r = warp.report(Defect::misaligned, in, lane))
      r->text = fmt::format("{} of {} at {}", counted(bytes, "byte"), space_name(space),
                            describe(warp, space, address));
    return false;
  }
  bool good = true;
  switch (space) {
    case Space::shared:
      place.region = warp.block->shared.get();
      place.by.base = warp.block->begun;
      place.at = static_cast<int64_t>(address);
      good = place.region->covers(address, bytes);
      break;
    case Space::local: {
      const int64_t size = warp.launch->program.local_bytes;
      place.region = warp.local.get();
      place.by.clocks = nullptr;
      good = address < static_cast<uint64_t>(size) && size - static_cast<int64_t>(address) >= bytes;
      place.at = static_cast<int64_t>(address) + lane * size;
      break;
    }
    case Space::param:
      good = false;
      break;
    default:
      place.region = warp.launch->memory.find(address);
      good = place.region && place.region->covers(address, bytes);
      if (good) place.at = static_cast<int64_t>(address - place.region->base());
      good = good && place.region->all(place.at, bytes, kLive);
  }
  if (good) return true;
  if (Report* r = warp.report(Defect::out_of_bounds, in, lane))
    r->text = fmt::format("{} of {} at {}", counted(bytes, "byte"), space_name(space),
                          describe(warp, space, address));
  return false;
}

bool check_written(Warp& warp, const Instr& in, const Place& place, int bytes, int lane) {
  if (place.region->all(place.at, bytes, kWritten)) return true;
  if (Report* r = warp.report(Defect::uninitialised_memory, in, lane))
    r->text = fmt::format("{} of {} at {}", counted(bytes, "byte"), space_name(place.space),
                          describe(warp, place.space,
                                   place.space == Space::local
                                       ? static_cast<uint64_t>(place.at % warp.launch->program.local_bytes)
                                       : place.region->base() + static_cast<uint64_t>(place.at)));
  return false;
}

void note(Warp& warp, const Instr& in, const Place& place, int bytes, int lane, bool write, bool atomic) {
  if (!place.by.clocks) return;
  const Conflict conflict = write ? place.region->note_write(place.at, bytes, place.by, atomic)
                                  : place.region->note_read(place.at, bytes, place.by, atomic);
  if (!conflict.race) return;
  const bool shared = place.space == Space::shared;
  if (Report* r = warp.report(shared ? Defect::shared_race : Defect::global_race, in, lane))
    r->text = fmt::format("{} at {} after a {} by {} without a barrier between", write ? "write" : "read",
                          describe(warp, place.space, place.region->base() + static_cast<uint64_t>(place.at)),
                          conflict.with_write ? "write" : "read", who(warp, conflict.warp));
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
  if (x.base >= 0) warp.check_defined(x.base, in);
  uint64_t address[kLanes];
  addresses_of(warp, x.base, x.offset, address);
  const int total = x.bytes * x.count;
  const bool atomic = x.order != Order::plain;
  uint8_t staged[kLanes][16] = {};
  for (uint32_t m = warp.active; m; m &= m - 1) {
    const int l = first_lane(m);
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
    const int reg = x.registers[static_cast<size_t>(e)];
    if (reg < 0) continue;
    const Slot& slot = slot_of(warp, reg);
    for (uint32_t m = warp.active; m; m &= m - 1) {
      const int l = first_lane(m);
      uint64_t v = 0;
      std::memcpy(&v, staged[l] + e * x.bytes, x.bytes);
      store_lane(warp, slot, l, x.sign ? extended(v, x.bytes) : v);
    }
    warp.defined[reg] |= warp.active;
  }
}

void run_store(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  if (x.base >= 0) warp.check_defined(x.base, in);
  for (int e = 0; e < x.count; ++e) warp.check_defined(x.registers[static_cast<size_t>(e)], in);
  uint64_t address[kLanes];
  addresses_of(warp, x.base, x.offset, address);
  const int total = x.bytes * x.count;
  const bool atomic = x.order != Order::plain;
  for (uint32_t m = warp.active; m; m &= m - 1) {
    int l = first_lane(m);
    uint8_t staged[16];
    for (int e = 0; e < x.count; ++e) {
      const Slot& slot = slot_of(warp, x.registers[static_cast<size_t>(e)]);
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
      if (place.by.clocks)
        for (uint32_t other = warp.active & ((1u << l) - 1); other; other &= other - 1)
          if (address[first_lane(other)] == address[l] && !atomic) {
            const bool shared = place.space == Space::shared;
            if (!shared) break;
            if (Report* r = warp.report(Defect::shared_race, in, l))
              r->text = fmt::format(
                  "lanes {} and {} write different values to {}", first_lane(other), l,
                  describe(warp, place.space, place.region->base() + static_cast<uint64_t>(place.at)));
            break;
          }
      std::memcpy(to, staged, static_cast<size_t>(total));
      if (place.by.clocks) warp.launch->progress_at = warp.launch->executed;
    }
    place.region->mark_written(place.at, total);
  }
}

void run_load_param(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  for (int e = 0; e < x.count; ++e) {
    const int reg = x.registers[static_cast<size_t>(e)];
    if (reg < 0) continue;
    uint64_t v = 0;
    std::memcpy(&v, warp.launch->params.data() + x.offset + e * x.bytes, x.bytes);
    if (x.sign) v = extended(v, x.bytes);
    for (uint32_t m = warp.active; m; m &= m - 1) store_lane(warp, slot_of(warp, reg), first_lane(m), v);
    warp.defined[reg] |= warp.active;
  }
}

// cp.async reads its source at once but writes when it is waited for; until then its bytes count as
// unwritten.
void run_copy_async(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  if (x.base >= 0) warp.check_defined(x.base, in);
  if (x.base2 >= 0) warp.check_defined(x.base2, in);
  uint64_t to[kLanes], from[kLanes];
  addresses_of(warp, x.base, x.offset, to);
  addresses_of(warp, x.base2, x.offset2, from);
  for (uint32_t m = warp.active; m; m &= m - 1) {
    const int l = first_lane(m);
    int take = x.bytes;
    if (x.size >= 0) {
      take = static_cast<int>(std::min<uint32_t>(words_of(warp, x.size)[l], x.bytes));
    }
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
      const Place place{warp.block->shared.get(), copy.to, by, Space::shared};
      note(warp, in, place, copy.count, copy.lane, true, false);
    }
    warp.copy_groups.pop_front();
    warp.launch->progress_at = warp.launch->executed;
  }
}

}  // namespace gacc::emulator
