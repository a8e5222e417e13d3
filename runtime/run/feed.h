// Training on micro-batches that the caller hands over, epoch by epoch, where nobody knows beforehand how many there
// are: a loader in Python, a C program. Windows and tails are those of runtime/session/window.h, as in train.h.
#pragma once
#include <optional>

#include "runtime/session/session.h"
#include "runtime/session/window.h"

namespace gacc {

class Feed {
 public:
  // Both must outlive it.
  Feed(Session& session, const Plan& plan) : session_(session), plan_(plan), rules_(rules_of(plan, 0)) {}
  // An error where no more can come before the epoch ends: a short micro-batch has been left out (drop).
  Status check_order() const;
  // Trains on the next micro-batch of the epoch. Gives the window that this has closed by an update, if any.
  Result<std::optional<WindowReport>> take(InputBytes inputs, int64_t samples);
  // Ends the epoch: what is left of a window is a tail.
  Result<std::optional<WindowReport>> end_epoch();

 private:
  Status leave_out(int64_t samples);
  Result<std::optional<WindowReport>> close(WindowRules::Next next);

  Session& session_;
  const Plan& plan_;
  WindowRules rules_;
  bool left_out_ = false;  // a short micro-batch of this epoch
};

}  // namespace gacc
