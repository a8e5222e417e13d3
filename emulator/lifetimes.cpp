// See lifetimes.h. In the phase in which one value ends and another begins in the same bytes, these are
// marked as stale: they hold the old value, which may be read, until something writes them.
#include "emulator/lifetimes.h"

#include <utility>

namespace gacc::emulator {

template <class Choose>
void Lifetimes::each(const Choose& choose, void (Region::*act)(int64_t at, int64_t count)) {
  for (const ValueLife& value : values_) {
    if (!choose(value)) continue;
    Region* region = memory_.find(value.address);
    if (region && region->covers(value.address, value.bytes))
      (region->*act)(static_cast<int64_t>(value.address - region->base()), value.bytes);
  }
}

void Lifetimes::enter() {
  each([&](const ValueLife& v) { return v.last == phase_ && v.first < phase_; }, &Region::mark_stale);
  each([&](const ValueLife& v) { return v.first == phase_; }, &Region::begin_value);
}

void Lifetimes::leave() {
  const auto begins = [&](const ValueLife& v) { return v.first == phase_; };
  const auto stays = [&](const ValueLife& v) { return v.first == phase_ && v.last > phase_; };
  const auto ends = [&](const ValueLife& v) { return v.last == phase_; };
  each(begins, &Region::forget_stale);  // nothing wrote these
  each(ends, &Region::mark_stale);
  each(stays, &Region::unmark_stale);
  each(ends, &Region::forget_stale);
}

void Lifetimes::begin(std::vector<ValueLife> values) {
  leave();
  values_ = std::move(values);
  meetings_.clear();
  phase_ = 0;
  enter();
}

void Lifetimes::arrive(uint64_t address, int block, int64_t blocks) {
  if (values_.empty()) return;
  Meeting& meeting = meetings_[address];
  if (meeting.missing == 0) {
    meeting.arrived.assign(static_cast<size_t>(blocks), false);
    meeting.missing = blocks;
  }
  if (meeting.arrived[static_cast<size_t>(block)]) return;
  meeting.arrived[static_cast<size_t>(block)] = true;
  if (--meeting.missing > 0) return;
  leave();
  ++phase_;
  enter();
}

}  // namespace gacc::emulator
