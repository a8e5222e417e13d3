// The order of memory accesses. The actors are the warps of a launch, for shared and for global memory alike.
// Each warp's time is cut into epochs by what it publishes (a barrier, a release). A stamp names one warp's
// epoch, or a set of readers. Two accesses race when the earlier one's stamp is not known to the later one's
// warp. Stamps grow for the life of a Clocks, so shadow memory is never cleared between launches.
//
// What a warp knows is kept in two parts: of its own block an epoch for each warp, and of the other blocks
// one list that warps share until it changes. A barrier of the block then costs as much as it has warps,
// however large the grid is.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace gacc::emulator {

using Stamp = uint32_t;
constexpr Stamp kAtomic = 0x80000000u;  // in shadow memory: the access was atomic
constexpr size_t kMostWarps = 32;       // of a block

class Clocks {
 public:
  // The newest epoch of each warp of the launch, by its number, that is ordered before the owner. Null:
  // nothing is known. Never changed while more than one has it.
  struct Epochs : std::vector<uint32_t> {
    Stamp before = 0;  // their stamps are less than this one
    // Lists of a line, of what is published at one address, grow: a later version has all of an earlier one.
    uint64_t line = 0, version = 0;
  };
  using Known = std::shared_ptr<Epochs>;
  // The joint history and knowledge of the warps that have reached a barrier.
  struct Gathered {
    uint32_t own[kMostWarps] = {};
    Known others;
  };

  // A launch begins, with room for `resident` blocks of `warps` warps at a time. False when the stamps ran
  // out and shadow memory must be cleared.
  bool restart(int resident, int warps);
  // A block takes a place: its warps are the actors from place * warps on, and unordered with all others.
  // `alone`: the blocks before it have ended.
  void begin(int place, int block, bool alone);
  Stamp base() const { return base_; }  // the launch's first stamp: older ones are ordered before it
  Stamp next() const { return next_; }
  Stamp mine(int actor) {
    Actor& a = actors_[actor];
    return a.stamp != 0 ? a.stamp : a.stamp = make({a.id, a.epoch, 0, next_, next_});
  }
  // The questions below are about stamps of this launch.
  bool ordered(Stamp earlier, int actor);
  Stamp add_reader(Stamp earlier, int actor);  // the stamp of a set of readers with this actor in it
  // One of the warps that a stamp names, for messages; the first of its block when no more is known.
  uint32_t warp_of(Stamp stamp) const;

  void release(int actor, Known& into);  // publishes all this actor did and knows
  void acquire(int actor, const Known& from);
  // A barrier: whoever arrives publishes; whoever leaves knows what was published.
  void arrive(int actor, Gathered& into);
  void leave(int actor, const Gathered& from);
  static void join(Known& into, const Known& from);

 private:
  struct Actor {
    uint32_t id = 0, first = 0;  // the warp's number in the launch, and that of its block's first
    uint32_t epoch = 1;
    Stamp stamp = 0;  // of the epoch; 0: not asked for yet
    uint32_t own[kMostWarps] = {};
    Known others;
  };
  struct Meaning {  // of stamp first_ + index
    uint32_t id, epoch;
    Stamp before;  // the rest of a set of readers, or 0
    Stamp one;     // of this epoch alone
    Stamp least;   // of the set
  };
  struct Recent {
    uint64_t key = 0;
    Stamp set = 0;
  };

  Stamp make(const Meaning& meaning);
  Stamp link(Stamp before, Stamp one);
  Stamp extend_set(Stamp earlier, int actor);
  bool ordered_set(Stamp earlier, int actor);
  bool knows(const Actor& actor, const Meaning& meaning) const;
  void next_epoch(Actor& actor) { ++actor.epoch, actor.stamp = 0; }
  static uint64_t key_of(Stamp a, Stamp b) { return uint64_t{a} << 32 | b; }
  static size_t place_of(Stamp a, Stamp b) { return (a * 31 + b) % 1024; }

  Stamp base_ = 1, next_ = 1;
  // Stamps from base_ to here are of blocks that have ended and published nothing: nobody knows of them.
  Stamp first_ = 1;
  uint32_t warps_ = 1;
  bool published_ = false;
  std::vector<Actor> actors_;
  std::vector<Meaning> meanings_;
  std::vector<Stamp> begun_;  // the first stamp of each block, by number
  std::unordered_map<uint64_t, Stamp> sets_;
  std::vector<Stamp> kept_;  // of extend_set
  uint64_t lines_ = 0;
  // Recent answers about sets_ and about order, the two most frequent questions of a launch. Stamps are never used
  // twice and knowledge only grows, so an old entry cannot be mistaken for a new one and stays true.
  Recent recent_[1024];
  uint64_t known_[1024] = {};
};

inline bool Clocks::knows(const Actor& actor, const Meaning& meaning) const {
  const uint32_t own = meaning.id - actor.first;
  if (own < warps_) return meaning.id == actor.id || actor.own[own] >= meaning.epoch;
  return actor.others && meaning.id < actor.others->size() && (*actor.others)[meaning.id] >= meaning.epoch;
}

inline bool Clocks::ordered(Stamp earlier, int actor) {
  if (earlier < first_) return false;
  const Meaning& meaning = meanings_[earlier - first_];
  if (!knows(actors_[actor], meaning)) return false;
  return meaning.before == 0 || ordered_set(earlier, actor);
}

inline Stamp Clocks::add_reader(Stamp earlier, int actor) {
  const Stamp stamp = mine(actor);
  Recent& recent = recent_[place_of(earlier, stamp)];
  if (recent.key != key_of(earlier, stamp)) recent = {key_of(earlier, stamp), extend_set(earlier, actor)};
  return recent.set;
}

}  // namespace gacc::emulator
