#include "runtime/run/begin.h"

#include "runtime/long_work.h"

namespace gacc {

namespace {

// Returns the buffers that are written right behind `init`, each whole: no number of theirs is drawn first.
std::vector<const PlanBuffer*> written_next(const Plan& plan, const Beginning& from) {
  std::vector<const PlanBuffer*> buffers;
  if (from.checkpoint != nullptr) {
    for (const PlanBuffer& buffer : plan.buffers)
      if (is_kept(buffer) && buffer.whole.empty()) buffers.push_back(&buffer);  // of a slice its end is not
    return buffers;
  }
  if (from.weights != nullptr) buffers = from.weights->written(plan);
  if (from.adapter == nullptr) return buffers;
  const std::vector<const PlanBuffer*> more = from.adapter->written(plan);
  buffers.insert(buffers.end(), more.begin(), more.end());
  return buffers;
}

}  // namespace

Status begin(Session& session, const Plan& plan, const Beginning& from) {
  {
    const LongWork work("drawing initial weights");
    GACC_TRY(session.init(from.seed, static_cast<float>(from.lr), written_next(plan, from)));
  }
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
