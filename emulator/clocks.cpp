// Vector clocks with stamps; see clocks.h.
#include "emulator/clocks.h"

#include <algorithm>

namespace gacc::emulator {
namespace {

bool covers(const std::vector<uint32_t>& all, const std::vector<uint32_t>& some) {
  if (all.size() < some.size()) return false;
  bool good = true;
  for (size_t i = 0; i < some.size(); ++i) good &= all[i] >= some[i];
  return good;
}

void raise(Clocks::Epochs& to, const Clocks::Epochs& by) {
  to.before = std::max(to.before, by.before);
  to.resize(std::max(to.size(), by.size()));
  for (size_t i = 0; i < by.size(); ++i) to[i] = std::max(to[i], by[i]);
}

}  // namespace

bool Clocks::restart(int resident, int warps) {
  const bool fits = next_ < 0x60000000u;
  if (!fits) {
    next_ = 1;
    std::fill(std::begin(recent_), std::end(recent_), Recent{});
    std::fill(std::begin(known_), std::end(known_), 0);
  }
  base_ = first_ = next_;
  warps_ = static_cast<uint32_t>(warps);
  published_ = false;
  meanings_.clear();
  begun_.clear();
  sets_.clear();
  actors_.assign(static_cast<size_t>(resident) * warps_, {});
  return fits;
}

void Clocks::begin(int place, int block, bool alone) {
  if (alone && !published_) {
    meanings_.clear();
    sets_.clear();
    first_ = next_;
  }
  begun_.push_back(next_);
  const uint32_t first = static_cast<uint32_t>(block) * warps_;
  for (uint32_t w = 0; w < warps_; ++w) {
    Actor& actor = actors_[static_cast<size_t>(place) * warps_ + w] = {};
    actor.id = first + w;
    actor.first = first;
  }
}

Stamp Clocks::make(const Meaning& meaning) {
  meanings_.push_back(meaning);
  return next_++;
}

Stamp Clocks::link(Stamp before, Stamp one) {
  if (before == 0) return one;
  auto [place, fresh] = sets_.try_emplace(key_of(before, one), 0);
  if (fresh) {
    Meaning set = meanings_[one - first_];
    set.before = before;
    if (before >= first_) set.least = std::min(set.least, meanings_[before - first_].least);
    place->second = make(set);
  }
  return place->second;
}

bool Clocks::ordered_set(Stamp earlier, int actor) {
  const Stamp stamp = mine(actor);
  uint64_t& known = known_[place_of(earlier, stamp)];
  if (known == key_of(earlier, stamp)) return true;
  for (Stamp s = earlier; s != 0; s = meanings_[s - first_].before)
    if (s < first_ || !knows(actors_[actor], meanings_[s - first_])) return false;
  known = key_of(earlier, stamp);
  return true;
}

// Readers that are ordered before this one need not stay: who knows of it knows of them. The search for them
// ends where only other blocks' follow that this one cannot know; some of its own block may stay behind
// these.
Stamp Clocks::extend_set(Stamp earlier, int actor) {
  const Stamp stamp = mine(actor);
  const Actor& reader = actors_[actor];
  const Stamp unknown = reader.others ? reader.others->before : 0;  // in other blocks, and all later ones
  Stamp rest = earlier;                                             // of the set that stays as it is
  size_t above = 0;  // readers that stay, of those before `rest`
  kept_.clear();
  for (Stamp s = earlier; s >= first_; s = meanings_[s - first_].before) {
    const Meaning& meaning = meanings_[s - first_];
    if (meaning.least >= unknown && meaning.id - reader.first >= warps_) break;
    if (knows(reader, meaning)) {
      rest = meaning.before;
      above = kept_.size();
    } else {
      kept_.push_back(meaning.one);
    }
  }
  while (above > 0) rest = link(rest, kept_[--above]);
  return link(rest, stamp);
}

uint32_t Clocks::warp_of(Stamp stamp) const {
  if (stamp >= first_) return meanings_[stamp - first_].id;
  const auto after = std::upper_bound(begun_.begin(), begun_.end(), stamp);
  return static_cast<uint32_t>(after - begun_.begin() - 1) * warps_;
}

void Clocks::join(Known& into, const Known& from) {
  if (!from || into == from) return;
  if (into && into->line != 0 && into->line == from->line) {
    if (from->version > into->version) into = from;
  } else if (!into || covers(*from, *into)) {
    into = from;
  } else if (!covers(*into, *from)) {
    into = std::make_shared<Epochs>(*into);
    raise(*into, *from);
    into->line = 0;
  }
}

void Clocks::release(int actor, Known& into) {
  Actor& a = actors_[actor];
  if (!into) {
    into = std::make_shared<Epochs>();
    into->line = ++lines_;
  } else if (into.use_count() > 1) {
    into = std::make_shared<Epochs>(*into);
  }
  if (a.others) raise(*into, *a.others);
  into->resize(std::max<size_t>(into->size(), a.first + warps_));
  for (uint32_t w = 0; w < warps_; ++w)
    (*into)[a.first + w] = std::max((*into)[a.first + w], a.first + w == a.id ? a.epoch : a.own[w]);
  into->before = next_;
  ++into->version;
  next_epoch(a);
  published_ = true;
}

void Clocks::acquire(int actor, const Known& from) {
  Actor& a = actors_[actor];
  if (!from || a.others == from) return;
  join(a.others, from);
  for (uint32_t w = 0; w < warps_ && a.first + w < from->size(); ++w)
    a.own[w] = std::max(a.own[w], (*from)[a.first + w]);
}

void Clocks::arrive(int actor, Gathered& into) {
  Actor& a = actors_[actor];
  for (uint32_t w = 0; w < warps_; ++w)
    into.own[w] = std::max(into.own[w], a.first + w == a.id ? a.epoch : a.own[w]);
  join(into.others, a.others);
  next_epoch(a);
}

void Clocks::leave(int actor, const Gathered& from) {
  Actor& a = actors_[actor];
  for (uint32_t w = 0; w < warps_; ++w) a.own[w] = std::max(a.own[w], from.own[w]);
  join(a.others, from.others);
}

}  // namespace gacc::emulator
