#include "runtime/run/begin.h"

namespace gacc {

Status begin(Session& session, const Plan& plan, const Beginning& from) {
  GACC_TRY(session.init(from.seed, static_cast<float>(from.lr)));
  GACC_TRY(session.write_class_weights(from.class_weights));
  if (from.checkpoint != nullptr) {
    const Checkpoint& saved = from.checkpoint->content();
    GACC_TRY(from.checkpoint->restore(plan, session));
    session.resume_window(saved.train.window_launches, saved.train.window_samples);
    return from.lr == saved.rate.used ? Status()
                                      : session.write_state(state::lr, static_cast<float>(from.lr));
  }
  if (from.weights != nullptr) GACC_TRY(from.weights->write(session));
  return from.adapter == nullptr ? Status() : from.adapter->write(session);
}

Result<WindowReport> update_window(Session& session, const Plan& plan) {
  WindowReport report = GACC_TRY(session.update());
  if (ends_training(plan, report)) return Status::error(why_training_ends(plan, report));
  return report;
}

}  // namespace gacc
