// atom, red and fences. Lanes go one after another. A release publishes what the block did so far at the
// address; an acquire learns what was published there; a fence does both for the relaxed accesses around it.
#include <cstring>
#include <type_traits>

#include "emulator/numbers.h"
#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

template <class T>
uint64_t apply_integer(AtomicOp op, uint64_t from, uint64_t with, uint64_t instead) {
  const T old = static_cast<T>(from), b = static_cast<T>(with);
  const auto result = [&]() -> T {
    switch (op) {
      case AtomicOp::add:
        return static_cast<T>(from + with);
      case AtomicOp::min:
        return std::min(old, b);
      case AtomicOp::max:
        return std::max(old, b);
      case AtomicOp::exch:
        return b;
      case AtomicOp::cas:
        return old == b ? static_cast<T>(instead) : old;
      case AtomicOp::bit_and:
        return old & b;
      case AtomicOp::bit_or:
        return old | b;
      case AtomicOp::bit_xor:
        return old ^ b;
      case AtomicOp::inc:
        return old >= b ? 0 : old + 1;
    }
    return old;
  };
  return static_cast<std::make_unsigned_t<T>>(result());
}

// add.f32 takes and leaves subnormal numbers as zeros in global memory, and keeps them in shared memory.
uint64_t apply(const Extra& x, Space space, uint64_t old, uint64_t b, uint64_t c) {
  if (x.real) {
    const auto p = bits_as<float>(static_cast<uint32_t>(old)), q = bits_as<float>(static_cast<uint32_t>(b));
    return bits_as<uint32_t>(space == Space::shared ? p + q : flush(flush(p) + flush(q)));
  }
  if (x.bytes == 8) return (x.sign ? apply_integer<int64_t> : apply_integer<uint64_t>)(x.atomic, old, b, c);
  return (x.sign ? apply_integer<int32_t> : apply_integer<uint32_t>)(x.atomic, old, b, c);
}

uint64_t read_lane(const Warp& warp, int reg, int l) {
  return reg < 0 ? 0 : load_lane(warp, slot_of(warp, reg), l);
}

}  // namespace

void run_atomic(Warp& warp, const Instr& in) {
  const Extra& x = extra_of(warp, in);
  const auto address = addresses_of(warp, in, x.at);
  for (const int reg : {in.s[0], in.s[1]})
    if (reg >= 0) warp.check_defined(reg, in);
  const int bytes = x.bytes;
  for (const int l : LanesOf{warp.active}) {
    Place place;
    if (!locate(warp, in, x.space, address[l], bytes, l, place)) continue;
    check_written(warp, in, place, bytes, l);
    if (place.space == Space::global) {
      if (x.order == Order::release || x.order == Order::acq_rel || warp.fenced) {
        publish(warp, address[l]);
        const Launch& launch = *warp.launch;
        if (launch.cooperative)
          launch.lifetimes.arrive(address[l], warp.block->index, static_cast<int64_t>(launch.grid.count()));
      }
      learn(warp, address[l], x.order == Order::acquire || x.order == Order::acq_rel);
    }
    note(warp, in, place, bytes, l, true, true);
    uint64_t old = 0;
    uint8_t* at = place.region->data() + place.at;
    std::memcpy(&old, at, static_cast<size_t>(bytes));
    uint64_t value = apply(x, place.space, old, read_lane(warp, in.s[0], l), read_lane(warp, in.s[1], l));
    std::memcpy(at, &value, static_cast<size_t>(bytes));
    place.region->mark_written(place.at, bytes);
    if (value != old) warp.launch->progress_at = warp.launch->executed;
    if (in.d >= 0) store_lane(warp, slot_of(warp, in.d), l, old);
  }
  ++warp.polls;
  if (in.d >= 0) warp.defined[in.d] |= warp.active;
}

void run_fence(Warp& warp, const Instr&) {
  warp.fenced = true;
  warp.launch->clocks.acquire(warp.actor(), warp.seen);
}

}  // namespace gacc::emulator
