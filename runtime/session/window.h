// Which samples make a launch, and which launches make a window (the K launches of one update): the
// arithmetic of train.tail, apart from anything that runs. Launches of an epoch count from 0.
#pragma once
#include <cstdint>
#include <optional>

#include "runtime/plan.h"

namespace gacc {

enum class Tail : uint8_t { flush, drop, carry };

struct WindowRules {
  int64_t samples = 0;      // of the dataset
  int64_t micro_batch = 1;  // M
  int64_t accumulate = 1;   // K
  Tail tail = Tail::flush;

  // ceil(samples / M); under drop the short micro-batch at the end is left out.
  int64_t launches_per_epoch() const;
  // Samples of one launch: M, or what is left for the last one.
  int64_t batch(int64_t launch) const;

  // What follows a launch when the window then holds `in_window` launches: nothing, the update, or (drop, at
  // the end of an epoch) throwing the window away.
  enum class Next : uint8_t { launch, update, drop };
  Next after(int64_t launch, int64_t in_window) const;

  // An error, with the numbers and what to change, when no window could ever be applied. `epochs`: none for
  // no limit.
  Status check_can_update(std::optional<int64_t> epochs) const;
};
// Of a plan, over so many samples.
WindowRules rules_of(const Plan& plan, int64_t samples);

}  // namespace gacc
