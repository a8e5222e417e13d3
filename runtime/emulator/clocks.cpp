// Vector clocks with stamps; see clocks.h.
#include "runtime/emulator/clocks.h"

#include <algorithm>

namespace gacc::emulator {

bool Clocks::restart(int actors) {
  bool fits = next_ < 0x60000000u;
  if (!fits) {
    next_ = 1;
    for (Recent& recent : recent_) recent = {};
  }
  base_ = next_;
  meanings_.clear();
  sets_.clear();
  actors_.assign(static_cast<size_t>(actors), {});
  for (int a = 0; a < actors; ++a) {
    actors_[static_cast<size_t>(a)].stamp = next_++;
    meanings_.push_back({a, 1, {}});
  }
  return fits;
}

void Clocks::next_epoch(int actor) {
  Actor& a = actors_[static_cast<size_t>(actor)];
  a.stamp = next_++;
  meanings_.push_back({actor, ++a.epoch, {}});
}

bool Clocks::knows(int actor, int other, uint32_t epoch) const {
  if (actor == other) return true;
  const Known& known = actors_[static_cast<size_t>(actor)].known;
  return static_cast<size_t>(other) < known.size() && known[static_cast<size_t>(other)] >= epoch;
}

bool Clocks::ordered(Stamp earlier, int actor) const {
  if (earlier < base_) return true;  // another launch
  const Meaning& meaning = meanings_[earlier - base_];
  if (!knows(actor, meaning.actor, meaning.epoch)) return false;
  return std::all_of(meaning.others.begin(), meaning.others.end(),
                     [&](const auto& other) { return knows(actor, other.first, other.second); });
}

Stamp Clocks::add_reader(Stamp earlier, int actor) {
  Stamp stamp = mine(actor);
  if (earlier < base_) return stamp;
  // Stamps are never used twice, so an old entry cannot be mistaken for a new one.
  const uint64_t key = uint64_t{earlier} << 32 | stamp;
  Recent& recent = recent_[(earlier * 31 + stamp) % 256];
  if (recent.key == key) return recent.set;
  recent = {key, extend_set(earlier, actor)};
  return recent.set;
}

Stamp Clocks::extend_set(Stamp earlier, int actor) {
  Stamp stamp = mine(actor);
  if (ordered(earlier, actor)) return stamp;
  auto [place, fresh] = sets_.try_emplace(uint64_t{earlier} << 32 | stamp, 0);
  if (!fresh) return place->second;
  Meaning meaning = meanings_[earlier - base_];
  // This actor's newest epoch replaces an older one; nothing changes when it is in the set already.
  uint32_t epoch = actors_[static_cast<size_t>(actor)].epoch;
  if (meaning.actor == actor)
    meaning.epoch = epoch;
  else {
    auto found = std::find_if(meaning.others.begin(), meaning.others.end(),
                              [&](const auto& o) { return o.first == actor; });
    if (found == meaning.others.end())
      meaning.others.emplace_back(actor, epoch);
    else if (found->second == epoch)
      return place->second = earlier;
    else
      found->second = epoch;
  }
  meanings_.push_back(std::move(meaning));
  return place->second = next_++;
}

int Clocks::actor_of(Stamp stamp) const { return stamp < base_ ? -1 : meanings_[stamp - base_].actor; }

void Clocks::release(int actor, Known& into) {
  const Actor& a = actors_[static_cast<size_t>(actor)];
  into.resize(actors_.size());
  for (size_t i = 0; i < a.known.size(); ++i) into[i] = std::max(into[i], a.known[i]);
  uint32_t& own = into[static_cast<size_t>(actor)];
  own = std::max(own, a.epoch);
  next_epoch(actor);
}

void Clocks::acquire(int actor, const Known& from) {
  if (from.empty()) return;
  Known& known = actors_[static_cast<size_t>(actor)].known;
  known.resize(actors_.size());
  for (size_t i = 0; i < from.size(); ++i) known[i] = std::max(known[i], from[i]);
}

void Clocks::barrier(std::span<const int> actors) {
  Known all(actors_.size());
  for (int actor : actors) {
    const Actor& a = actors_[static_cast<size_t>(actor)];
    for (size_t i = 0; i < a.known.size(); ++i) all[i] = std::max(all[i], a.known[i]);
    all[static_cast<size_t>(actor)] = std::max(all[static_cast<size_t>(actor)], a.epoch);
  }
  for (int actor : actors) {
    actors_[static_cast<size_t>(actor)].known = all;
    next_epoch(actor);
  }
}

}  // namespace gacc::emulator
