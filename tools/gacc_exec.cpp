// gacc-exec: runs a compiled step on data. Options, files and signals are handled here; the training itself
// is runtime/train.h. Links neither compiler nor GPU library: devices are plug-ins.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/checkpoint.h"
#include "runtime/data/dataset.h"
#include "runtime/log.h"
#include "runtime/plugin.h"
#include "runtime/process_memory.h"
#include "runtime/profile.h"
#include "runtime/progress.h"
#include "runtime/safetensors.h"
#include "runtime/session.h"
#include "runtime/tensorboard.h"
#include "runtime/train.h"
#include "runtime/verify.h"

namespace {

using namespace gacc;

enum Exit { kDone = 0, kFailed = 1, kWrongCommand = 2, kBug = 3, kInterrupted = 130 };

struct Arguments {
  std::string artifact, data, eval, device = "auto", load, save, log, dump_grads, gemm = "auto", tune_gemm;
  std::string checkpoint, tensorboard;
  std::string profile;
  std::optional<int64_t> epochs, updates, launches, seed, checkpoint_every;
  std::optional<double> lr;
  int64_t eval_every = 0;
  int threads = 0;
  bool no_shuffle = false, init_only = false, quiet = false, resume = false, verify = false;
};

std::atomic<bool> interrupt_seen = false;

// The first Ctrl-C or SIGTERM ends the run in order, a second one ends it at once. A thread of its own waits
// for them, and all others block them: code of oneDNN loses what it keeps on the stack when a signal arrives
// (observed as a damaged heap, in about one of thirty interrupted runs).
void handle_interrupts() {
  signal(SIGPIPE, SIG_IGN);  // a closed standard output must not end the training
  signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit of its size is an error like a full disk
  sigset_t interrupts;
  sigemptyset(&interrupts);
  for (int number : {SIGINT, SIGTERM}) {
    signal(number, SIG_DFL);  // also where the shell has them ignored, as for `gacc-exec ... &`
    sigaddset(&interrupts, number);
  }
  pthread_sigmask(SIG_BLOCK, &interrupts, nullptr);
  std::thread([interrupts] {
    int number = 0;
    while (sigwait(&interrupts, &number) != 0) continue;
    interrupt_seen = true;
    pthread_sigmask(SIG_UNBLOCK, &interrupts, nullptr);
    while (true) pause();
  }).detach();
}

int fail(Exit status, const std::string& text) {
  fmt::print(stderr, "gacc-exec: error: {}\n", text);
  return status;
}

// Writes the events to the log and to TensorBoard, and shows them.
class Reporter : public TrainObserver {
 public:
  // `updates`: good ones before this process.
  Reporter(const Plan& plan, LogFile& log, EventFile& events, Progress& progress, int64_t updates)
      : plan_(plan), log_(log), events_(events), progress_(progress), updates_(updates) {}
  Status launched(const LaunchReport& report) override {
    progress_.launched(report);
    return {};
  }
  Status updated(const UpdateReport& report) override {
    progress_.updated(report);
    const WindowReport& window = report.window;
    updates_ += window.applied;
    if (events_.is_open()) {
      // The loss and norm of a skipped window are of no use in a curve.
      Scalar scalars[] = {{"loss_scale", window.scale},
                          {"skipped", static_cast<double>(report.update - updates_)},
                          {"lr", window.lr},
                          {"loss", window.loss},
                          {"grad_norm", window.norm}};
      auto shown = std::span<const Scalar>(scalars).first(window.applied ? 5 : 2);
      if (Status status = events_.write(updates_, shown); !status) return status;
    }
    return log_.is_open() ? log_.write(update_line(report, plan_)) : Status();
  }
  Status epoch_done(const EpochReport& report) override {
    progress_.say(epoch_text(report));
    const Scalar scalars[] = {
        {"epoch/loss", report.loss},
        {"epoch/epoch", static_cast<double>(report.epoch)},
        {"epoch/samples_per_second",
         report.seconds > 0 ? static_cast<double>(report.samples) / report.seconds : 0}};
    if (Status status = events_.write(updates_, scalars); !status) return status;
    return log_.write(epoch_line(report));
  }
  Status evaluated(const EvaluationReport& report) override {
    progress_.say(evaluation_text(report, plan_));
    std::vector<std::string> tags = {"eval/loss"};
    for (const std::string& metric : plan_.metrics) tags.push_back("eval/" + metric);
    std::vector<Scalar> scalars = {{tags[0], report.result.loss}};
    for (size_t i = 0; i < report.result.metrics.size(); ++i)
      scalars.push_back({tags[i + 1], report.result.metrics[i]});
    if (Status status = events_.write(report.updates, scalars); !status) return status;
    return log_.write(eval_line(report, plan_));
  }

 private:
  const Plan& plan_;
  LogFile& log_;
  EventFile& events_;
  Progress& progress_;
  int64_t updates_;
};

// One run: prepare everything that can be wrong, train, write what was asked for.
class Run {
 public:
  explicit Run(const Arguments& arguments) : arguments_(arguments) {}

  int execute() {
    Status status = prepare();
    if (status) status = arguments_.verify ? verify_artifact() : work();
    if (device_) status = finish_device(std::move(status));
    // The log tells of a run that began, however it ended; before that nothing is left of it.
    if (Status closed = began_ ? log_.commit() : Status(); status) status = closed;
    if (!status) return fail(kFailed, status.text());
    if (!result_.interrupted) return kDone;
    if (!arguments_.checkpoint.empty())
      written_ += fmt::format("; --resume continues from {}", folder_.file());
    fmt::print(stderr, "gacc-exec: interrupted in epoch {} after {} updates{}\n", result_.epochs + 1,
               result_.updates, written_);
    return kInterrupted;
  }

 private:
  Status prepare();
  Status open_checkpoint();
  Status read_gemm_choices();
  Status write_gemm_choices();
  Status check_checkpoint();
  Status work();
  Status verify_artifact();
  Status save_checkpoint(Session& session, const TrainState& state);
  Status train_and_write(Session& session, Progress& progress);
  Status finish_device(Status status);

  // Fails where a file could not be put in place later, long before there is anything to write.
  static Status check_writable(const std::string& path) {
    return path.empty() ? Status() : AtomicFile().open(path);
  }
  Status save(const std::string& path, const std::vector<NamedTensor>& tensors) {
    Status status = save_safetensors(path, tensors);
    if (status) written_ += fmt::format("; wrote {}", path);
    return status;
  }

  const Arguments& arguments_;
  Artifact artifact_;
  Dataset data_, eval_;
  std::vector<NamedTensor> loaded_;
  DeviceOptions device_options_;
  std::unique_ptr<Device> device_;
  LogFile log_;
  EventFile events_;
  CheckpointFolder folder_;
  CheckpointReader earlier_;  // what to resume from, when `resumes_`
  bool resumes_ = false;
  Settings settings_;
  RunRate rate_;
  bool began_ = false;
  TrainOptions options_;
  TrainResult result_;
  std::string written_;  // for the message of an interrupted run
};

Status Run::prepare() {
  const Arguments& given = arguments_;
  if (Status status = load_artifact(given.artifact, artifact_); !status) return status;
  Plan& plan = artifact_.plan;
  rate_.of_model = plan.lr;
  if (given.seed) plan.seed = *given.seed;
  if (given.lr) plan.lr = *given.lr;
  options_.epochs = given.epochs;
  options_.updates = given.updates;
  options_.launches = given.launches;
  options_.eval_every = given.eval_every;
  options_.shuffle = plan.shuffle && !given.no_shuffle;
  options_.seed = static_cast<uint64_t>(plan.seed);
  options_.keep_gradients = !given.dump_grads.empty();
  options_.interrupted = [] { return interrupt_seen.load(); };

  for (const std::string& path : {given.save, given.dump_grads, given.profile})
    if (Status status = check_writable(path); !status) return status;
  if (Status status = open_checkpoint(); !status) return status;
  if (!given.log.empty()) {
    std::optional<LogPosition> position;
    if (resumes_) position = earlier_.content().log;
    if (Status status = log_.open(given.log, position); !status) return status;
  }
  if (!given.load.empty())
    if (Status status = load_safetensors(given.load, loaded_); !status) return status;
  if (!given.init_only) {
    if (Status status = load_dataset(given.data, plan, data_); !status) return status;
    if (!given.eval.empty())
      if (Status status = load_dataset(given.eval, plan, eval_); !status) return status;
    if (plan.plateau && given.eval.empty())
      fmt::print(stderr, "gacc-exec: note: without --eval the schedule \"plateau\" never cuts the rate\n");
    if (Status status = check_can_update(plan, data_.samples, options_); !status) return status;
    if (Status status = check_checkpoint(); !status) return status;
  }
  if (!given.tensorboard.empty()) {
    std::optional<int64_t> step;  // what an earlier run has shown beyond it is shown anew
    if (given.resume) step = resumes_ ? earlier_.content().train.updates : 0;
    if (Status status = events_.open(given.tensorboard, step); !status) return status;
  }
  std::string note;
  device_options_.threads = given.threads;
  if (given.gemm != "auto")
    device_options_.gemm = given.gemm == "cublas" ? GemmChoice::cublas : GemmChoice::builtin;
  if (Status read = read_gemm_choices(); !read) return read;
  Status status = open_device(given.device, device_options_, artifact_, device_, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  return status;
}

// A run that goes on takes the algorithms that it began with.
Status Run::read_gemm_choices() {
  const std::string& file = arguments_.tune_gemm;
  device_options_.tune_gemm = !file.empty();
  if (resumes_ && !earlier_.content().gemm_choices.empty()) {
    device_options_.gemm_choices = earlier_.content().gemm_choices;
    device_options_.gemm_choices_from = folder_.file();
    return {};
  }
  if (file.empty()) return {};
  if (Status status = check_writable(file); !status) return status;
  if (access(file.c_str(), F_OK) != 0) return {};
  device_options_.gemm_choices_from = file;
  if (Status status = read_file(file, device_options_.gemm_choices); !status) return status;
  return device_options_.gemm_choices.empty() ? Status::error("{} is empty", file) : Status();
}

Status Run::write_gemm_choices() {
  const std::string& file = arguments_.tune_gemm;
  if (file.empty()) return {};
  const std::string text = device_->gemm_choices();
  if (text.empty()) {
    fmt::print(stderr,
               "gacc-exec: note: --tune-gemm: {} has no algorithms of matrix products to choose among\n",
               device_->name());
    return {};
  }
  const bool holds_it = device_options_.gemm_choices_from == file && device_options_.gemm_choices == text;
  return holds_it ? Status() : write_file_atomically(file, text);
}

Status Run::open_checkpoint() {
  const Arguments& given = arguments_;
  if (given.checkpoint.empty()) return {};
  if (Status status = folder_.open(given.checkpoint); !status) return status;
  resumes_ = given.resume && folder_.has_checkpoint();
  if (given.resume && !resumes_)
    fmt::print(stderr, "gacc-exec: no checkpoint in {}: starting from the beginning\n", given.checkpoint);
  if (!given.resume && folder_.has_checkpoint())
    fmt::print(stderr, "gacc-exec: without --resume the run starts from the beginning and will replace {}\n",
               folder_.file());
  if (!resumes_) return {};
  if (Status status = earlier_.open(folder_.file()); !status) return status;
  options_.resume = &earlier_.content().train;
  return {};
}

// Whether the checkpoint is this model's, data's and command's; and the learning rate, which may differ.
Status Run::check_checkpoint() {
  Plan& plan = artifact_.plan;
  if (arguments_.checkpoint.empty()) return {};
  settings_ = settings_of(artifact_, data_, options_);
  if (resumes_) {
    if (Status status = earlier_.check(plan, settings_); !status) return status;
    const RunRate& was = earlier_.content().rate;
    if (!arguments_.lr && was.of_model != rate_.of_model)
      return Status::error("cannot resume from {}: optimizer.lr was {}, and is {} now; --lr says which",
                           folder_.file(), was.of_model, rate_.of_model);
    if (!arguments_.lr) plan.lr = was.used;
    const TrainState& state = earlier_.content().train;
    fmt::print(stderr, "gacc-exec: resuming from {}: {} epochs, {} updates, {} launches in the open window\n",
               folder_.file(), state.epochs, state.updates, state.window_launches);
    if (log_.is_open() && !log_.continues())
      fmt::print(stderr, "gacc-exec: {} is not the log of the run before: a new one begins\n",
                 arguments_.log);
  }
  rate_.used = plan.lr;
  return {};
}

Status Run::save_checkpoint(Session& session, const TrainState& state) {
  // The log must not be behind the checkpoint, whatever happens.
  if (Status status = log_.sync(); !status) return status;
  const Checkpoint checkpoint{settings_, rate_, state, log_.position(), device_->gemm_choices()};
  return write_checkpoint(folder_.file(), checkpoint, artifact_.plan, session);
}

Status Run::work() {
  const Plan& plan = artifact_.plan;
  Session session(*device_, plan);
  if (Status status = session.open(artifact_); !status) return status;
  if (std::string note = device_->load_note(); !note.empty() && !arguments_.quiet)
    fmt::print(stderr, "{}\n", note);
  if (Status status = write_gemm_choices(); !status) return status;
  if (!arguments_.profile.empty())
    if (Status status = device_->start_profile(); !status) return status;
  Status status = session.init(static_cast<uint64_t>(plan.seed), static_cast<float>(plan.lr));
  if (!status) return status;
  if (!arguments_.load.empty() && !resumes_)
    if (Status status = session.set_parameters(loaded_, arguments_.load); !status) return status;
  loaded_.clear();
  if (resumes_) {
    if (Status status = earlier_.restore(plan, session); !status) return status;
    if (plan.lr != earlier_.content().rate.used)
      if (Status status = session.set_lr(static_cast<float>(plan.lr)); !status) return status;
  }
  if (!arguments_.checkpoint.empty()) {
    options_.checkpoint_every = arguments_.checkpoint_every.value_or(0);
    options_.checkpoint = [&](const TrainState& state) { return save_checkpoint(session, state); };
  }

  if (!log_.continues())
    if (Status status = log_.write(start_line(plan, device_->kind())); !status) return status;
  began_ = true;
  Progress progress(plan, arguments_.quiet);
  return train_and_write(session, progress);
}

Status Run::verify_artifact() {
  VerifyOptions options;
  options.device = device_->kind();
  options.device_options = device_options_;
  options.seed = options_.seed;
  options.lr = artifact_.plan.lr;
  options.shuffle = options_.shuffle;
  options.loaded = arguments_.load.empty() ? nullptr : &loaded_;
  options.compiler_folder = executable_folder();
  options.interrupted = options_.interrupted;
  options.print = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  device_.reset();  // one at a time: the arena may fill the machine
  VerifyResult result;
  Status status = verify(artifact_, data_, options, result);
  if (!status || result.failed == 0) return status;
  return Status::error("--verify: {} of {} checks failed", result.failed, result.failed + result.passed);
}

Status Run::train_and_write(Session& session, Progress& progress) {
  const Plan& plan = artifact_.plan;
  if (!arguments_.init_only) {
    Reporter reporter(plan, log_, events_, progress, options_.resume ? options_.resume->updates : 0);
    progress.begin(options_, expected_launches(plan, data_.samples, options_));
    const Dataset* eval = arguments_.eval.empty() ? nullptr : &eval_;
    Status status = train(session, plan, data_, eval, options_, reporter, result_);
    progress.clear();
    if (!status) return status;
    if (result_.open_launches > 0)
      progress.say(fmt::format("the last window ({} of {} launches) was still open and is not applied",
                               result_.open_launches, plan.accumulate));
  }
  if (!arguments_.dump_grads.empty()) {
    if (!result_.gradients.empty()) {
      if (Status status = save(arguments_.dump_grads, result_.gradients); !status) return status;
    } else if (!result_.interrupted) {
      return Status::error("--dump-grads {}: nothing was launched, so there are no gradients",
                           arguments_.dump_grads);
    }
  }
  if (!arguments_.save.empty()) {
    std::vector<NamedTensor> tensors;
    if (Status status = session.parameters(tensors); !status) return status;
    if (Status status = save(arguments_.save, tensors); !status) return status;
  }
  if (!arguments_.profile.empty()) {
    std::vector<Timing> timings;
    if (Status status = device_->read_profile(timings); !status) return status;
    const std::string text = profile_text(plan, *device_, timings);
    if (Status status = write_file_atomically(arguments_.profile, text); !status) return status;
    written_ += fmt::format("; wrote {}", arguments_.profile);
  }
  if (device_->kind() == "cpu")
    if (const std::string text = process_memory_text(plan.arena_bytes, process_peak_bytes()); !text.empty())
      progress.say(text);
  if (Status status = events_.close(); !status) return status;
  return log_.write(end_line(result_, device_->peak_bytes()));
}

// What a checking device found stands above any error of the run, which it may explain.
Status Run::finish_device(Status status) {
  std::string reports;
  Status finished = device_->finish(reports);
  if (!reports.empty()) fmt::print(stderr, "{}{}", reports, reports.back() == '\n' ? "" : "\n");
  return status ? finished : status;
}

// What the option parser cannot see; empty when the command line makes sense.
std::string wrong_command(const Arguments& given) {
  const std::string& device = given.device;
  bool numbered = device.substr(0, 5) == "cuda:" && device.size() > 5 && device.size() < 10 &&
                  device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "auto" && device != "cpu" && device != "cuda" && device != "emulate" && !numbered)
    return fmt::format("--device {}: expected auto, cpu, cuda, cuda:N or emulate", device);
  if (given.lr && !(std::isfinite(static_cast<float>(*given.lr)) && *given.lr >= 0))
    return "--lr: expected a number of at least 0";
  if (given.init_only && !given.eval.empty())
    return "--init-only launches nothing: --eval does not go with it";
  if (!given.tune_gemm.empty() && given.gemm == "builtin")
    return "--tune-gemm chooses among cuBLAS's algorithms: --gemm builtin does not go with it";
  if (given.init_only && !given.profile.empty())
    return "--init-only launches nothing: --profile does not go with it";
  if (given.init_only && !given.dump_grads.empty())
    return "--init-only launches nothing: --dump-grads does not go with it";
  if (given.verify) {
    const std::pair<const char*, bool> others[] = {{"--init-only", given.init_only},
                                                   {"--epochs", given.epochs.has_value()},
                                                   {"--updates", given.updates.has_value()},
                                                   {"--launches", given.launches.has_value()},
                                                   {"--eval", !given.eval.empty()},
                                                   {"--save", !given.save.empty()},
                                                   {"--log", !given.log.empty()},
                                                   {"--dump-grads", !given.dump_grads.empty()},
                                                   {"--profile", !given.profile.empty()},
                                                   {"--checkpoint", !given.checkpoint.empty()},
                                                   {"--tune-gemm", !given.tune_gemm.empty()},
                                                   {"--tensorboard", !given.tensorboard.empty()}};
    for (const auto& [name, present] : others)
      if (present)
        return fmt::format("--verify chooses its own launches and writes nothing: {} does not go with it",
                           name);
  }
  if (!given.init_only && given.data.empty()) return "--data is required (or --init-only)";
  if (given.init_only && !(given.checkpoint.empty() && given.tensorboard.empty()))
    return "--init-only launches nothing: --checkpoint and --tensorboard do not go with it";
  if (given.checkpoint.empty() && (given.resume || given.checkpoint_every))
    return fmt::format("{} needs --checkpoint", given.resume ? "--resume" : "--checkpoint-every");
  if (given.eval_every > 0 && given.eval.empty()) return "--eval-every needs --eval";
  const std::pair<const char*, const std::string*> outputs[] = {{"--save", &given.save},
                                                                {"--log", &given.log},
                                                                {"--dump-grads", &given.dump_grads},
                                                                {"--profile", &given.profile}};
  for (const auto& [name, path] : outputs)
    for (const auto& [other_name, other] : outputs)
      if (name != other_name && !path->empty() && *path == *other)
        return fmt::format("{} and {} name the same file {}", name, other_name, *path);
  return "";
}

void add_options(CLI::App& app, Arguments& to) {
  app.add_option("ARTIFACT", to.artifact, "what gaccc wrote (step.ptx)")->required();
  app.add_option("--data", to.data,
                 "training data: mnist:DIR[,split=S], idx:, npy:, npz:, csv:, tokens:F.bin, text:F, "
                 "synthetic:digits|tokens; ,limit=N");
  app.add_option("--eval", to.eval, "data evaluated after every epoch and at the end");
  app.add_option("--device", to.device,
                 "auto, cpu, cuda[:N] or emulate; auto: the first GPU that can, else the CPU");
  app.add_option("--epochs", to.epochs,
                 "stop after N epochs; default: the model's, unless another limit is given")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--updates", to.updates, "stop after N updates")->check(CLI::NonNegativeNumber);
  app.add_option("--launches", to.launches, "stop after N launches")->check(CLI::NonNegativeNumber);
  app.add_option("--load", to.load, "parameters to begin with (safetensors)");
  app.add_option("--save", to.save, "write the parameters at the end (safetensors, f32)");
  app.add_option("--log", to.log, "write one JSON object a line");
  app.add_option("--eval-every", to.eval_every, "evaluate after every N updates, too")
      ->check(CLI::PositiveNumber);
  app.add_flag("--no-shuffle", to.no_shuffle, "take the samples in file order");
  app.add_option("--seed", to.seed, "replaces model.seed");
  app.add_option("--lr", to.lr, "replaces optimizer.lr");
  app.add_option("--threads", to.threads, "on a CPU; default: all cores")->check(CLI::Range(1, 4096));
  app.add_flag("--init-only", to.init_only, "initialise (and --save), launch nothing");
  app.add_option("--dump-grads", to.dump_grads,
                 "write the mean gradient of the last window (safetensors, f32)");
  app.add_flag("--quiet", to.quiet, "show no progress");
  app.add_option("--checkpoint", to.checkpoint,
                 "folder for the full state of the run, written after every epoch, at the end and on Ctrl-C");
  app.add_option("--checkpoint-every", to.checkpoint_every,
                 "write it after every N updates instead of epochs")
      ->check(CLI::PositiveNumber);
  app.add_flag("--resume", to.resume,
               "go on, bit for bit, from the checkpoint in that folder, if there is one");
  app.add_option("--tensorboard", to.tensorboard, "write the log's figures for TensorBoard into this folder");
  app.add_option("--gemm", to.gemm, "on a GPU: auto, cublas or builtin")
      ->check(CLI::IsMember({"auto", "cublas", "builtin"}));
  app.add_option("--tune-gemm", to.tune_gemm,
                 "on a GPU: measure cuBLASLt's algorithms for every matrix product and keep the fastest ones "
                 "in FILE, which later runs read")
      ->type_name("FILE");
  app.add_option("--profile", to.profile,
                 "measure every launch, and write a Chrome trace of them (launches then run one by one)");
  app.add_flag("--verify", to.verify, "self-test of the artifact on this data; trains and writes nothing");
  app.set_version_flag("--version",
                       fmt::format("gacc-exec {} (artifact format {})", GACC_VERSION, kArtifactVersion));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  try {
    CLI::App app("Trains with a step compiled by gaccc.", "gacc-exec");
    add_options(app, arguments);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? kDone : kWrongCommand;
    }
    if (std::string text = wrong_command(arguments); !text.empty()) return fail(kWrongCommand, text);
    handle_interrupts();
    return Run(arguments).execute();
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(
        kBug,
        fmt::format("internal error: {}\nThis is a bug in gacc; please report it with the model file and "
                    "the command line.",
                    error.what()));
  }
}
