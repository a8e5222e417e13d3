#include "tools/exec_checkpoint.h"

#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"

namespace gacc {

Status RunCheckpoint::open() {
  if (given_.checkpoint.empty()) return {};
  if (!given_.trains()) {  // reads the file, and leaves the folder alone
    resumes_ = true;
    return earlier_.open(file());
  }
  if (first_) GACC_TRY(folder_.open(given_.checkpoint));  // the other ranks read what is in it
  resumes_ = given_.resume && is_there(file());
  if (first_) {
    const std::string old = checkpoint_files(given_.checkpoint)[1], next = free_name(old);
    if (given_.resume && !resumes_)
      print_stderr(
          "gacc-exec: no checkpoint in {}: starting from the beginning{}\n", given_.checkpoint,
          old == next ? "" : fmt::format("; {} is not read unless it is called {}", old, folder_.file()));
    if (!given_.resume && !folder_.name_for_old().empty())
      print_stderr(
          "gacc-exec: without --resume the run starts from the beginning and will replace {}, which stays as "
          "{}{}\n",
          folder_.file(), old, old == next ? "" : fmt::format(" (and the one there as {})", next));
  }
  return resumes_ ? earlier_.open(file()) : Status();
}

Status RunCheckpoint::check(Artifact& artifact, const Dataset& data, const TrainOptions& options,
                            double of_model) {
  Plan& plan = artifact.plan;
  rate_ = {of_model, plan.lr};
  if (given_.checkpoint.empty()) return {};
  settings_ = settings_of(artifact, data, options);
  if (!given_.trains()) {
    keep_to_model(settings_, earlier().settings);
    return earlier_.check(plan, settings_);
  }
  if (!resumes_) return {};
  GACC_TRY(earlier_.check(plan, settings_));
  const RunRate& was = earlier().rate;
  if (!given_.lr && was.of_model != of_model)
    return Status::error("cannot resume from {}: optimizer.lr was {}, and is {} now; --lr says which", file(),
                         was.of_model, of_model);
  if (!given_.lr) plan.lr = rate_.used = was.used;
  const TrainState& state = earlier().train;
  if (first_)
    print_stderr("gacc-exec: resuming from {}: {}, {}, {} in the open window\n", folder_.file(),
                 counted(state.epochs, "epoch"), counted(state.updates, "update"),
                 counted(state.window_launches, "launch"));
  return {};
}

Status RunCheckpoint::write(Session& session, const Plan& plan, const TrainState& state, const Beside& beside,
                            Progress& progress) {
  const bool inside = opening_ && session.window().launches() > 0;
  const Checkpoint checkpoint{settings_,
                              rate_,
                              state,
                              inside ? opening_->log : beside.log,
                              beside.gemm_choices,
                              inside ? opening_->best.value_or(best_) : best_,
                              to_metadata(beside.facts)};
  // A checkpoint that the run does not come from stays: who reads that it will be replaced presses Ctrl-C,
  // and that writes one.
  const std::string kept = resumes_ || replaced_ ? "" : folder_.name_for_old();
  GACC_TRY(write_checkpoint(folder_.file(), checkpoint, plan, session, kept));
  replaced_ = true;
  if (kept.empty()) return {};
  progress.clear();
  print_stderr("gacc-exec: the checkpoint that was in {} is kept as {}\n", folder_.file(), kept);
  return {};
}

Status RunCheckpoint::save_best(Session& session, const SaveForm& form, const Model& model,
                                const Metadata& metadata) {
  std::vector<NamedTensor> tensors = GACC_TRY(parameters_for({form}, model.plan, session));
  const bool keeps = !given_.checkpoint.empty();
  if (keeps && opening_ && !opening_->best) opening_->best = best_;
  return save_parameters(form, model.plan, model.loaded, tensors, metadata, keeps ? &best_ : nullptr);
}

Status RunCheckpoint::restore_best(const SaveForm& form, const Model& model) {
  if (!resumes_ || earlier().best.empty()) return {};
  best_ = earlier().best;
  return write_saved(form, model.plan, model.loaded, best_);
}

}  // namespace gacc
