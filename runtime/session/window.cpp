#include "runtime/session/window.h"

#include <algorithm>

namespace gacc {

WindowRules rules_of(const Plan& plan, int64_t samples) {
  return {samples, plan.micro_batch, plan.accumulate, plan.tail};
}

int64_t WindowRules::launches_per_epoch() const {
  return samples / micro_batch + (tail != Tail::drop && samples % micro_batch != 0);
}

int64_t WindowRules::batch(int64_t launch) const {
  return std::min(micro_batch, samples - launch * micro_batch);
}

WindowRules::Next WindowRules::at_epoch_end(int64_t in_window) const {
  if (in_window == accumulate || tail == Tail::flush) return Next::update;
  return tail == Tail::drop ? Next::drop : Next::launch;
}

WindowRules::Next WindowRules::after(int64_t launch, int64_t in_window) const {
  return launch + 1 == launches_per_epoch() ? at_epoch_end(in_window) : within_epoch(in_window);
}

int64_t WindowRules::updates_of(int64_t launches) const {
  const int64_t each = launches_per_epoch();
  if (tail == Tail::carry || each == 0) return launches / accumulate;
  const int64_t of_epoch = each / accumulate + (tail == Tail::flush && each % accumulate != 0);
  return launches / each * of_epoch + launches % each / accumulate;
}

Status WindowRules::check_can_update(std::optional<int64_t> epochs) const {
  if (samples == 0) return Status::error("the training data has no samples");
  int64_t launches = launches_per_epoch();
  if (launches == 0)
    return Status::error(
        "no update could ever happen: {} {} not fill one micro-batch of {}, and train.tail = \"drop\" leaves "
        "short ones out; lower train.micro_batch to at most {}, or use train.tail = \"flush\"",
        counted(samples, "sample"), samples == 1 ? "does" : "do", micro_batch, samples);
  if (tail == Tail::drop && launches < accumulate)
    return Status::error(
        "no update could ever happen: {} {} {} of {} an epoch, a window needs {}, and train.tail = \"drop\" "
        "throws shorter ones away; lower train.accumulate to at most {}, or use train.tail = \"flush\"",
        counted(samples, "sample"), samples == 1 ? "makes" : "make", counted(launches, "launch"), micro_batch,
        accumulate, launches);
  // (K - 1) / L + 1 epochs are needed; compared like this nothing can overflow.
  const int64_t needed = (accumulate - 1) / launches + 1;
  if (tail == Tail::carry && epochs && *epochs < needed)
    return Status::error(
        "no update could ever happen: {} of {} {} {}, and a window needs {}; train for at least {}, lower "
        "train.accumulate, or use train.tail = \"flush\"",
        counted(*epochs, "epoch"), counted(launches, "launch"), *epochs == 1 ? "is" : "are",
        *epochs * launches, accumulate, counted(needed, "epoch"));
  return {};
}

}  // namespace gacc
