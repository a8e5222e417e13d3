// The samples of a launch, and the launches of a window (the K launches of one update): the
// arithmetic of train.tail, apart from anything that runs. Launches of an epoch count from 0.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/plan.h"

namespace gacc {

struct WindowRules {
  int64_t samples = 0;      // of the dataset
  int64_t micro_batch = 1;  // M
  int64_t accumulate = 1;   // K
  Tail tail = Tail::flush;

  // ceil(samples / M); under drop the short micro-batch at the end is left out.
  int64_t launches_per_epoch() const;
  // Samples of one launch: M, or what is left for the last one.
  int64_t batch(int64_t launch) const;

  // Returns what follows when the window holds `in_window` launches: another launch, the update, or (drop, at the
  // end of an epoch) throwing the window away.
  enum class Next : uint8_t { launch, update, drop };
  Next within_epoch(int64_t in_window) const { return in_window == accumulate ? Next::update : Next::launch; }
  Next at_epoch_end(int64_t in_window) const;
  // The same after launch number `launch` of the epoch.
  Next after(int64_t launch, int64_t in_window) const;
  // Returns the updates of the first so many launches of a run, if no window is skipped or without counted targets.
  int64_t updates_of(int64_t launches) const;
  // True for a micro-batch that is not launched: a short one under drop.
  bool leaves_out(int64_t batch_samples) const { return tail == Tail::drop && batch_samples < micro_batch; }

  // An error, with the numbers and what to change, when no window could ever be applied. `epochs`: none for
  // no limit.
  Status check_can_update(std::optional<int64_t> epochs) const;
};
// The rules of a plan, over so many samples.
WindowRules rules_of(const Plan& plan, int64_t samples);

}  // namespace gacc
