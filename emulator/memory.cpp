// Regions with shadow state; see memory.h.
#include "emulator/memory.h"

#include <algorithm>
#include <cstring>

namespace gacc::emulator {

Region::Region(uint64_t base, int64_t bytes, std::string name)
    : base_(base),
      bytes_(bytes),
      name_(std::move(name)),
      data_(make_zeroed<uint8_t>(bytes + 16)),
      shadow_(make_zeroed<uint8_t>(bytes + 16)) {
  if (shadow_) std::memset(shadow_.get(), kLive, static_cast<size_t>(bytes));
}

bool Region::all(int64_t at, int64_t count, uint8_t want) const {
  const uint8_t* s = shadow_.get() + at;
  const uint64_t wanted = want * 0x0101010101010101ull;
  for (; count >= 8; count -= 8, s += 8) {
    uint64_t bits;
    std::memcpy(&bits, s, 8);
    if ((bits & wanted) != wanted) return false;
  }
  for (; count > 0; --count, ++s)
    if ((*s & want) != want) return false;
  return true;
}

void Region::mark_written(int64_t at, int64_t count) {
  for (uint8_t& s : shadow(at, count)) s = static_cast<uint8_t>((s | kWritten) & ~kStale);
}
void Region::forget_written(int64_t at, int64_t count) {
  for (uint8_t& s : shadow(at, count)) s &= static_cast<uint8_t>(~kWritten);
}

void Region::declare_live(int64_t at, int64_t count, std::string name) {
  if (ranges_.empty())
    for (uint8_t& s : shadow(0, bytes_)) s &= static_cast<uint8_t>(~kLive);
  for (uint8_t& s : shadow(at, count)) s |= kLive;
  ranges_.push_back({at, count, std::move(name)});
}

std::string Region::range_before(int64_t at) const {
  const Range* best = nullptr;
  for (const Range& range : ranges_)
    if (range.at <= at && (!best || range.at > best->at)) best = &range;
  return best ? best->name : "";
}

void Region::prepare(int64_t at, int64_t count) {
  const bool narrow = (at | count) & 3;
  if (words_ && !(narrow && shift_ == 2)) return;
  if (!words_) {
    shift_ = narrow ? 0 : 2;
    words_ = make_zeroed<Word>((bytes_ >> shift_) + 4);
    return;
  }
  Zeroed<Word> bytes = make_zeroed<Word>(bytes_ + 4);
  for (int64_t i = 0; i < bytes_; ++i) bytes[i] = words_[i >> 2];
  words_ = std::move(bytes);
  shift_ = 0;
}

template <bool write>
Conflict Region::note(int64_t at, int64_t count, const Toucher& by, bool atomic) {
  prepare(at, count);
  Clocks& clocks = *by.clocks;
  const Stamp mine = clocks.mine(by.actor);
  const auto races = [&](Stamp with) {
    return with >= by.base && with != mine && !clocks.ordered(with, by.actor);
  };
  Conflict conflict;
  for (int64_t i = at >> shift_; i <= (at + count - 1) >> shift_; ++i) {
    Word& word = words_[i];
    if (write && races(word.reader)) conflict = {true, false, clocks.warp_of(word.reader)};
    const Stamp writer = word.writer & ~kAtomic;
    if (!(atomic && word.writer & kAtomic) && races(writer)) conflict = {true, true, clocks.warp_of(writer)};
    // An atomic read conflicts with plain writes only: seen there.
    if (write)
      word.writer = atomic ? mine | kAtomic : mine;
    else if (!atomic && word.reader != mine)
      word.reader = word.reader < by.base ? mine : clocks.add_reader(word.reader, by.actor);
  }
  return conflict;
}
template Conflict Region::note<false>(int64_t, int64_t, const Toucher&, bool);
template Conflict Region::note<true>(int64_t, int64_t, const Toucher&, bool);

Region* GlobalMemory::allocate(int64_t bytes, std::string name) {
  if (bytes <= 0 || bytes > int64_t{1} << 38) return nullptr;
  auto region = std::make_unique<Region>(next_, bytes, std::move(name));
  if (!region->ok()) return nullptr;
  next_ += (static_cast<uint64_t>(bytes) + 0x20000) & ~uint64_t{0xffff};  // a gap of 64 KiB at least
  allocated_ += bytes;
  regions_.push_back(std::move(region));
  return regions_.back().get();
}

bool GlobalMemory::release(uint64_t address) {
  Region* region = find(address);
  if (!region || region->base() != address) return false;
  allocated_ -= region->bytes();
  std::erase_if(regions_, [&](const auto& r) { return r.get() == region; });
  last_ = nullptr;
  return true;
}

Region* GlobalMemory::nearest(uint64_t address) {
  auto after = std::upper_bound(regions_.begin(), regions_.end(), address,
                                [](uint64_t a, const auto& region) { return a < region->base(); });
  return after == regions_.begin() ? nullptr : std::prev(after)->get();
}

Region* GlobalMemory::find(uint64_t address, int64_t bytes) {
  if (last_ && last_->covers(address, bytes)) return last_;
  Region* region = nearest(address);
  if (!region || !region->covers(address, bytes)) return nullptr;
  return last_ = region;
}

// In the phase in which one value ends and another begins in the same bytes, these are marked as stale: they
// hold the old value, which may be read, until something writes them.
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
  if (meeting.arrived[block]) return;
  meeting.arrived[block] = true;
  if (--meeting.missing > 0) return;
  leave();
  ++phase_;
  enter();
}

}  // namespace gacc::emulator
