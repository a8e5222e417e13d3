// One run of gacc-exec. `Run` prepares everything that can be wrong, opens the session, and hands it to the
// function of the run's mode (exec_modes.cpp); then it says how the run ended.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/module.h"
#include "runtime/data/dataset.h"
#include "runtime/device.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/rank_sums.h"
#include "runtime/standard_streams.h"
#include "runtime/tell/log.h"
#include "runtime/tell/tensorboard.h"
#include "runtime/weights/adapters.h"
#include "runtime/weights/saved.h"
#include "runtime/weights/weights.h"
#include "tools/exec_arguments.h"
#include "tools/exec_checkpoint.h"

namespace gacc {

// Checks that the artifact can be run by so many ranks, in the mode that is asked for.
Status check_ranks(const Plan& plan, Mode mode, int64_t ranks);

// Writes on standard output, at once.
void print_text(std::string_view text);
// Fails where a text could not be printed, of which the run goes on.
Status printed();

class Run {
 public:
  // `interrupted`: tells whether the user asked the run to end. The ranks must outlive the run.
  Run(const Arguments& arguments, Collective& ranks, std::function<bool()> interrupted);
  // Returns the exit status; everything is printed.
  int execute();

  // ---- for the modes
  bool first() const { return ranks.rank() == 0; }
  // Says a line on standard error, of the first rank.
  template <class... Args>
  void say(fmt::format_string<Args...> form, Args&&... args) const {
    if (first()) print_stderr(form, std::forward<Args>(args)...);
  }
  // Gives what is written at the end, adapters first, and at each best evaluation.
  std::vector<SaveForm> saved_at_end() const;
  std::optional<SaveForm> saved_as_best() const;
  // Returns the weights of --load, or null; and the data that --check computes with.
  const Weights* weights_of_load() const { return given.load.empty() ? nullptr : &loaded; }
  const Dataset& check_data() const { return given.eval.empty() ? data : eval; }
  // Notes a file for the last line of the run.
  void wrote(const std::string& path) { written += fmt::format("; wrote {}", path); }
  // Begins the log.
  Status begin_log();

  Collective& ranks;
  // Files that other ranks have a part in, though the first one alone writes them.
  const bool tunes, saves, saves_best;
  const Arguments given;
  Artifact artifact;
  Dataset data, eval;
  const Dataset* labelled = nullptr;  // of --predict: the one of these that has labels, which are measured
  DataFacts facts;                    // what the training data have taught, in this run or before
  std::string about_data;             // what is shown of the training data, once; "" in a run that goes on
  Weights loaded;
  Adapter adapter;  // of --load-adapter
  DeviceOptions device_options;
  std::unique_ptr<Device> device;
  std::optional<RankExchange> exchange;
  LogFile log;
  EventFile events;
  RunCheckpoint checkpoint;
  TrainOptions options;
  GenerateOptions text;
  std::vector<std::string> prompts;  // of --prompts
  OutputForm outputs;                // of --predict
  std::vector<double> metric_units;  // one for each metric, by which it is multiplied to be shown
  TrainResult result;
  std::string done;     // the last line: what the run did; empty where results say it
  std::string written;  // the files, after it

 private:
  Status prepare_together();
  Status prepare();
  Status check_best() const;
  Status load_parameters();
  Status check_saving() const;
  SaveForm form_of(const char* option, const std::string& path) const;
  void say_remarks(const Dataset& of) const;
  void look_at_data();
  void say_settings() const;
  Status load_data(const std::string& spec, DataUse use, Dataset& to);
  Status load_predicted(bool labels);
  void find_units();
  Facts facts_of_rank() const;
  Status read_gemm_choices();
  Status take_gemm_choices();
  Status write_gemm_choices();
  Status open_session(Session& session);
  Status work();
  Status finish_device(Status status);
  void say_end() const;

  const Facts agreed_;  // of the command line, before the outputs of other ranks went
  RankPlace place_;
  double lr_of_model_ = 0;
  bool began_ = false;  // the log
};

// ---- the modes: what is done with a session that has its parameters
Status train_parameters(Run& run, Session& session);  // also --init-only, which launches nothing
Status evaluate_parameters(Run& run, Session& session);
Status write_predictions(Run& run, Session& session);
Status generate_text(Run& run, Session& session);
Status verify_artifact(Run& run);  // with sessions of its own

}  // namespace gacc
