// The checkpoint of a run of gacc-exec: what it goes on from, and what it leaves.
#pragma once
#include <optional>
#include <string>

#include "runtime/data/data_facts.h"
#include "runtime/store/checkpoint.h"
#include "runtime/tell/progress.h"
#include "runtime/weights/saved.h"
#include "tools/exec_arguments.h"

namespace gacc {

class RunCheckpoint {
 public:
  // `first`: this is the rank that writes. The arguments must outlive this.
  RunCheckpoint(const Arguments& given, bool first) : given_(given), first_(first) {}

  // Opens the folder and the checkpoint in it, if the command line names one.
  Status open();
  bool resumes() const { return resumes_; }
  const Checkpoint& earlier() const { return earlier_.content(); }
  std::string file() const { return checkpoint_files(given_.checkpoint)[0]; }
  // Checks that it is this model's, data's and command's. The plan gets the learning rate of the run, which may be
  // another one than the model's (`of_model`).
  Status check(Artifact& artifact, const Dataset& data, const TrainOptions& options, double of_model);
  // Returns what the session begins with, or null.
  const CheckpointReader* reader() const { return resumes_ ? &earlier_ : nullptr; }

  // The rest of a checkpoint, besides the session and the loop's state.
  struct Beside {
    LogPosition log;
    std::string gemm_choices;
    const DataFacts& facts;
  };
  // A window opens: with several lanes a checkpoint inside it is of its start.
  void window_opens(const LogPosition& log) { opening_ = {log}; }
  Status write(Session& session, const Plan& plan, const TrainState& state, const Beside& beside,
               Progress& progress);
  struct Model {
    const Plan& plan;
    const Weights& loaded;
  };
  // Writes the parameters as they are to --save-best, and keeps the file for checkpoints.
  Status save_best(Session& session, const SaveForm& form, const Model& model, const Metadata& metadata);
  // Puts the file of --save-best back: it may be that of an evaluation that this run has not made, or be gone.
  Status restore_best(const SaveForm& form, const Model& model);

 private:
  // The log's end and the file of --save-best as the open window found them.
  struct Opening {
    LogPosition log;
    std::optional<std::string> best{};  // where the window has replaced it
  };

  const Arguments& given_;
  const bool first_;
  CheckpointFolder folder_;
  CheckpointReader earlier_;  // what to resume from, when `resumes_`
  bool resumes_ = false;
  bool replaced_ = false;  // the checkpoint that the run found
  Settings settings_;
  RunRate rate_;
  std::string best_;  // the file of --save-best
  std::optional<Opening> opening_;
};

}  // namespace gacc
