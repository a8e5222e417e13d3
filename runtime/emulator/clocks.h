// Who is ordered before whom. The actors are the warps of a block (for shared memory) or the blocks of a
// launch (for global memory). Each actor's time is cut into epochs by what it publishes (a barrier, a
// release); a stamp names one actor's epoch, or a set of readers. Two accesses race when the earlier one's
// stamp is not known to the later one's actor. Stamps grow for the life of a Clocks, so shadow memory is
// never cleared between launches.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

namespace gacc::emulator {

using Stamp = uint32_t;
constexpr Stamp kAtomic = 0x80000000u;  // in shadow memory: the access was atomic

class Clocks {
 public:
  // Knowledge of others: their newest epoch that is ordered before us. Empty: nothing known.
  using Known = std::vector<uint32_t>;

  // Starts over with `actors`, all unordered. False when the stamps ran out and shadow memory must be
  // cleared.
  bool restart(int actors);
  Stamp base() const { return base_; }
  Stamp mine(int actor) const { return actors_[static_cast<size_t>(actor)].stamp; }
  bool ordered(Stamp earlier, int actor) const;
  // The stamp of a set of readers with this actor in it.
  Stamp add_reader(Stamp earlier, int actor);
  int actor_of(Stamp stamp) const;  // one of the actors that a stamp names, for messages

  void release(int actor, Known& into);  // publishes all this actor did and knows
  void acquire(int actor, const Known& from);
  void barrier(std::span<const int> actors);  // all of them know all of each other afterwards
  void finish(int actor) { actors_[static_cast<size_t>(actor)].known = {}; }

 private:
  struct Actor {
    uint32_t epoch = 1;
    Stamp stamp = 0;
    Known known;
  };
  struct Meaning {  // of stamp base_ + index
    int actor;
    uint32_t epoch;
    std::vector<std::pair<int, uint32_t>> others;  // further readers
  };
  void next_epoch(int actor);
  Stamp extend_set(Stamp earlier, int actor);
  bool knows(int actor, int other, uint32_t epoch) const;

  Stamp base_ = 1;
  Stamp next_ = 1;
  std::vector<Actor> actors_;
  std::vector<Meaning> meanings_;
  std::unordered_map<uint64_t, Stamp> sets_;
  struct Recent {
    uint64_t key = 0;
    Stamp set = 0;
  };
  Recent recent_[256];  // of sets_: add_reader is the hottest function of a launch
};

}  // namespace gacc::emulator
