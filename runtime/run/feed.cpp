#include "runtime/run/feed.h"

#include "runtime/run/begin.h"

namespace gacc {

Status Feed::check_order() const {
  if (!left_out_) return {};
  return Status::error("train.tail = \"drop\" takes batches of a multiple of {}, but for the last",
                       counted(plan_.micro_batch, "sample"));
}

// The samples have their ordinals all the same: random numbers of later samples do not depend on the micro-batch.
Status Feed::leave_out(int64_t samples) {
  left_out_ = true;
  if (plan_.find(state::samples_low) == nullptr) return {};
  const auto low = static_cast<uint32_t>(GACC_TRY(session_.read_state<int32_t>(state::samples_low)));
  const auto high = static_cast<uint32_t>(GACC_TRY(session_.read_state<int32_t>(state::samples_high)));
  return session_.set_ordinal(static_cast<int64_t>(uint64_t{high} << 32 | low) + samples);
}

Result<std::optional<WindowReport>> Feed::take(InputBytes inputs, int64_t samples) {
  GACC_TRY(check_order());
  if (rules_.leaves_out(samples)) {
    GACC_TRY(leave_out(samples));
    return std::optional<WindowReport>();
  }
  GACC_TRY(session_.step(inputs, samples));
  return close(rules_.within_epoch(session_.window().launches()));
}

Result<std::optional<WindowReport>> Feed::end_epoch() {
  left_out_ = false;
  return close(session_.window().launches() == 0 ? WindowRules::Next::launch
                                                 : rules_.at_epoch_end(session_.window().launches()));
}

Result<std::optional<WindowReport>> Feed::close(WindowRules::Next next) {
  std::optional<WindowReport> closed;
  if (next == WindowRules::Next::update) closed = GACC_TRY(update_window(session_, plan_));
  if (next == WindowRules::Next::drop) GACC_TRY(session_.drop_window());
  return closed;
}

}  // namespace gacc
