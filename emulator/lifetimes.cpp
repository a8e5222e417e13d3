// See lifetimes.h. In the phase in which one value ends and another begins in the same bytes, these are
// marked as stale: they hold the old value, which may be read, until something writes them.
#include "emulator/lifetimes.h"

#include <utility>

namespace gacc::emulator {

namespace {

constexpr auto mark_stale = [](uint8_t& shadow) { shadow |= kStale; };
constexpr auto unmark_stale = [](uint8_t& shadow) { shadow &= ~kStale; };
constexpr auto forget_stale = [](uint8_t& shadow) { shadow &= shadow & kStale ? ~(kStale | kWritten) : ~0; };
constexpr auto begin_value = [](uint8_t& shadow) { shadow &= shadow & kStale ? ~0 : ~kWritten; };

}  // namespace

template <class Choose, class Change>
void Lifetimes::each(const Choose& choose, const Change& change) {
  for (const ValueLife& value : values_) {
    Region* region = choose(value) ? memory_.find(value.address, value.bytes) : nullptr;
    if (!region) continue;
    for (uint8_t& shadow : region->shadow(region->offset(value.address), value.bytes)) change(shadow);
  }
}

void Lifetimes::enter() {
  each([&](const ValueLife& v) { return v.last == phase_ && v.first < phase_; }, mark_stale);
  each([&](const ValueLife& v) { return v.first == phase_; }, begin_value);
}

void Lifetimes::leave() {
  const auto ends = [&](const ValueLife& v) { return v.last == phase_; };
  each([&](const ValueLife& v) { return v.first == phase_; }, forget_stale);  // nothing wrote these
  each(ends, mark_stale);
  each([&](const ValueLife& v) { return v.first == phase_ && v.last > phase_; }, unmark_stale);
  each(ends, forget_stale);
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
