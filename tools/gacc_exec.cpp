// gacc-exec: runs a compiled step on data. Files and signals are handled here, options in exec_arguments.h;
// the training itself is runtime/run/train.h. Links neither LLVM nor a GPU library: devices are plug-ins.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "compiler/open_artifact.h"
#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/data/dataset.h"
#include "runtime/plugin.h"
#include "runtime/ranks/collective.h"
#include "runtime/ranks/launcher.h"
#include "runtime/ranks/rank_sums.h"
#include "runtime/run/begin.h"
#include "runtime/run/open_device.h"
#include "runtime/run/predict.h"
#include "runtime/run/self_check.h"
#include "runtime/run/train.h"
#include "runtime/safetensors.h"
#include "runtime/session/session.h"
#include "runtime/standard_streams.h"
#include "runtime/store/checkpoint.h"
#include "runtime/store/finite.h"
#include "runtime/tell/log.h"
#include "runtime/tell/profile.h"
#include "runtime/tell/progress.h"
#include "runtime/tell/tensorboard.h"
#include "runtime/text.h"
#include "runtime/weights/adapters.h"
#include "runtime/weights/weights.h"
#include "tools/command_line.h"
#include "tools/exec_arguments.h"
#include "tools/exec_reporter.h"

namespace {

using namespace gacc;

std::atomic<bool> interrupt_seen = false;

// The first Ctrl-C, SIGTERM or SIGHUP ends the run in order, a second one ends it at once. A thread of its own waits
// for them, and all others block them: code of oneDNN loses what it keeps on the stack when a signal arrives
// (observed as a damaged heap, in about one of thirty interrupted runs).
void handle_interrupts() {
  signal(SIGPIPE, SIG_IGN);  // a closed standard output must not end the training
  sigset_t interrupts;
  sigemptyset(&interrupts);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    // nohup means what it says; but a shell has SIGINT ignored for every `gacc-exec ... &`.
    if (signal(number, SIG_DFL) == SIG_IGN && number == SIGHUP)
      signal(number, SIG_IGN);
    else
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

// On standard output, at once.
void print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// One run: prepare everything that can be wrong, train, write what was asked for.
class Run {
 public:
  Run(const Arguments& arguments, Collective& ranks)
      : ranks_(ranks),
        tunes_(!arguments.tune_gemm.empty()),
        saves_(!arguments.save.empty() || !arguments.save_adapter.empty()),
        saves_best_(!arguments.save_best.empty()),
        arguments_(ranks.rank() == 0 ? arguments : without_outputs(arguments)),
        options_(arguments.train),
        text_(arguments.text) {
    options_.keep_gradients = !arguments.dump_grads.empty();
  }

  int execute() {
    Status status = prepare_together();
    if (status) status = arguments_.verify ? verify_artifact() : work();
    if (device_) status = finish_device(std::move(status));
    // The log tells of a run that began, however it ended; before that nothing is left of it.
    if (const Status closed = began_ ? log_.commit() : Status(); status) status = closed;
    if (!status) {
      if (ranks_.fail(status.text())) fail(kFailed, status.text());
      return ranks_.end(kFailed);
    }
    if (result_.interrupted) say_interrupted();
    return ranks_.end(result_.interrupted ? kInterrupted : kDone);
  }

 private:
  // The first rank alone writes and talks.
  static Arguments without_outputs(Arguments given) {
    for (std::string* file : {&given.save, &given.save_best, &given.log, &given.dump_grads,
                              &given.tensorboard, &given.profile, &given.tune_gemm, &given.save_adapter})
      file->clear();
    given.quiet = true;
    return given;
  }
  bool first() const { return ranks_.rank() == 0; }
  template <class... Args>
  void say(fmt::format_string<Args...> form, Args&&... args) const {
    if (first()) print_stderr(form, std::forward<Args>(args)...);
  }
  void say_interrupted() {
    if (arguments_.asks()) return say("gacc-exec: interrupted\n");
    if (!arguments_.checkpoint.empty())
      written_ += fmt::format("; --resume continues from {}", checkpoint_file());
    say("gacc-exec: interrupted in epoch {} after {}{}\n", result_.epochs + 1,
        counted(result_.updates, "update"), written_);
  }
  Status prepare_together() {
    place_ = GACC_TRY(find_place(ranks_));
    const Status status = prepare();
    return agree(ranks_, status, status ? facts_of_rank() : Facts());
  }

  std::string checkpoint_file() const { return checkpoint_files(arguments_.checkpoint)[0]; }
  // Fails where a file could not be put in place later, long before there is anything to write.
  static Status check_writable(const std::string& path) {
    return path.empty() ? Status() : AtomicFile().open(path);
  }
  // Parameters under our names.
  Metadata own_metadata() const {
    Metadata metadata = to_metadata(facts_);
    mark_own_names(artifact_.plan, metadata);
    return metadata;
  }
  Status save(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
    Status status = save_safetensors(path, tensors, metadata);
    if (status) written_ += fmt::format("; wrote {}", path);
    return status;
  }

  Status prepare() {
    const Arguments& given = arguments_;
    artifact_ = GACC_TRY(open_artifact(given.artifact));
    Plan& plan = artifact_.plan;
    rate_.of_model = plan.lr;
    if (given.seed) plan.seed = *given.seed;
    if (given.lr) plan.lr = *given.lr;
    options_.shuffle = plan.shuffle && !given.no_shuffle;
    options_.seed = static_cast<uint64_t>(plan.seed);
    options_.interrupted = [] { return interrupt_seen.load(); };

    GACC_TRY(check_ranks());
    GACC_TRY(check_best());
    if (!given.predict.empty()) GACC_TRY(check_predict(plan));
    if (given.generate) {
      text_.tokens = *given.generate;
      text_.seed = options_.seed;
      text_.interrupted = options_.interrupted;
      text_.print = print_text;
      GACC_TRY(check_generate(plan, text_));
    }
    for (const std::string& path :
         {given.save, given.save_best, given.predict, given.dump_grads, given.profile})
      GACC_TRY(check_writable(path));
    GACC_TRY(open_checkpoint());
    if (!given.log.empty())
      GACC_TRY(log_.open(given.log, resumes_ ? std::optional(earlier_.content().log) : std::nullopt));
    GACC_TRY(load_parameters());
    if (!given.init_only) {
      if (!given.data.empty())
        GACC_TRY(load_data(given.data, given.asks() ? DataUse::prediction : DataUse::training, data_));
      if (!given.eval.empty()) GACC_TRY(load_data(given.eval, DataUse::evaluation, eval_));
    }
    if (given.trains()) {
      if (plan.plateau && given.eval.empty())
        say("gacc-exec: note: without --eval the schedule \"plateau\" never cuts the rate\n");
      GACC_TRY(check_can_update(plan, data_.samples, options_));
    }
    if (!given.init_only) GACC_TRY(check_checkpoint());
    if (!given.tensorboard.empty()) {
      std::optional<int64_t> step;  // what an earlier run has shown beyond it is shown anew
      if (given.resume) step = resumes_ ? earlier_.content().train.updates : 0;
      GACC_TRY(events_.open(given.tensorboard, step));
    }
    std::string note;
    device_options_.threads = given.threads > 0 ? given.threads : place_.threads;
    device_options_.local_rank = place_.local_rank;
    if (given.gemm != "auto")
      device_options_.gemm = given.gemm == "cublas" ? GemmChoice::cublas : GemmChoice::builtin;
    GACC_TRY(read_gemm_choices());
    device_ = GACC_TRY(open_device(given.device, device_options_, artifact_, &note));
    if (!note.empty() && !given.quiet) say("{}\n", note);
    return {};
  }

  Status check_ranks() const {
    if (ranks_.size() == 1) return {};
    if (arguments_.verify) return Status::error("--verify tests in one process: start it without a launcher");
    if (arguments_.asks())
      return Status::error("{} works in one process: start it without a launcher",
                           arguments_.generate ? "--generate" : "--predict");
    const Plan& plan = artifact_.plan;
    const int64_t lanes = plan.lanes;
    if (ranks_.size() <= lanes) return {};
    const auto enough = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(ranks_.size())));
    return Status::error(
        "{} ranks, and every rank needs a lane: the artifact has train.lanes = {}, with train.accumulate = "
        "{} and train.micro_batch = {}. Start at most {}, or compile with --set train.lanes={}, which needs "
        "train.accumulate={} at least (a smaller train.micro_batch keeps the effective batch)",
        ranks_.size(), lanes, plan.accumulate, plan.micro_batch, lanes, enough, enough);
  }

  // What decides bits or the course of the run.
  Facts facts_of_rank() const {
    if (ranks_.size() == 1) return {};
    const Arguments& given = arguments_;
    Facts facts;
    const auto add = [&](const char* name, const auto& value) {
      facts.emplace_back(name, fmt::format("{}", value));
    };
    add("gacc", GACC_VERSION);
    uint32_t loaded = 0;
    const uint32_t artifact = crc32_of(artifact_.ptx, crc32_of(artifact_.ir));
    add("the artifact's checksum", fmt::format("{:08x}", artifact));
    add("the device", device_ ? device_->alike() : "none");
    for (const auto& [name, value] : settings_of(artifact_, data_, options_)) facts.emplace_back(name, value);
    for (const auto& [name, value] : settings_of(artifact_, eval_, options_))
      if (name.starts_with("the training data's")) facts.emplace_back("--eval: " + name, value);
    add("the number of samples of --eval", eval_.samples);
    add("the learning rate", artifact_.plan.lr);
    const int64_t every = options_.checkpoint_every;
    for (const auto& [name, number] :
         {std::pair("--epochs", options_.epochs),
          {"--updates", options_.updates},
          {"--launches", options_.launches},
          {"--patience", options_.patience},
          {"--checkpoint-every", every > 0 ? std::optional(every) : std::nullopt}})
      add(name, number ? std::to_string(*number) : "not given");
    add("--eval-every", options_.eval_every);
    add("--best", options_.best);
    add("--init-only", given.init_only);
    add("--dump-grads", options_.keep_gradients ? "given" : "not given");
    add("--gemm", given.gemm);
    for (const std::vector<StoredTensor>* tensors : {&loaded_.tensors(), &adapter_.tensors()})
      for (const StoredTensor& tensor : *tensors)
        for (const std::string_view text : {std::string_view(tensor.name), tensor.bytes})
          loaded = crc32_of(text, loaded);
    add("--load: the parameters' checksum", fmt::format("{:08x}", loaded));
    add("launches before the checkpoint", resumes_ ? earlier_.content().train.launches : 0);
    return facts;
  }

  // The file of --load, and what is known of the data: by a run that goes on, from its checkpoint.
  Status load_parameters() {
    const std::string& file = arguments_.load;
    Metadata metadata;
    if (!file.empty()) {
      GACC_TRY(loaded_.open(file, artifact_.plan));
      metadata = loaded_.metadata();
      if (const size_t kept = loaded_.missing().size(); kept > 0)
        say("gacc-exec: {} lacks {}, which keep{} their start: {}\n", file, counted(kept, "parameter"),
            kept == 1 ? "s" : "", fmt::join(loaded_.missing(), ", "));
    }
    if (const std::string& path = arguments_.load_adapter; !path.empty()) {
      GACC_TRY(adapter_.open(path, artifact_.plan));
      if (const std::vector<std::string>& kept = adapter_.missing(); !kept.empty())
        say("gacc-exec: {} lacks {} trained beside the adapters, which keep{} their start: {}\n", path,
            counted(static_cast<int64_t>(kept.size()), "parameter"), kept.size() == 1 ? "s" : "",
            fmt::join(kept, ", "));
    }
    GACC_TRY(check_saving());
    if (resumes_) metadata = earlier_.content().data;
    return read_facts(metadata, resumes_ ? checkpoint_file() : file, artifact_.plan, facts_);
  }

  // Whether the parameters can be written as they are asked for.
  Status check_saving() const {
    const Plan& plan = artifact_.plan;
    const bool adapts = !plan.adapters.empty();
    if (arguments_.merge && !adapts) return Status::error("--merge: the model has no adapters");
    if (arguments_.merge) GACC_TRY(check_merge(plan));
    if (!arguments_.save_as.empty()) {
      if (adapts && !arguments_.merge)
        return Status::error(
            "--save-as published: the model has adapters. --merge adds them to the weights, --save-adapter "
            "writes them alone");
      GACC_TRY(check_published(plan, loaded_));
    }
    if (arguments_.save_adapter.empty()) return {};
    if (const Status status = check_adapters(plan, loaded_); !status)
      return Status::error("--save-adapter: {}", status.text());
    return prepare_adapter(arguments_.save_adapter);
  }

  Status load_data(const std::string& spec, DataUse use, Dataset& data) {
    Status status = load_dataset(spec, artifact_.plan, use, facts_, data);
    for (const std::string& remark : data.remarks) say("gacc-exec: {}\n", remark);
    if (!status && use == DataUse::evaluation) return Status::error("--eval: {}", status.text());
    return status;
  }

  // A run that goes on takes the algorithms that it began with.
  Status read_gemm_choices() {
    const std::string& file = arguments_.tune_gemm;
    device_options_.tune_gemm = !file.empty();
    if (resumes_ && !earlier_.content().gemm_choices.empty()) {
      device_options_.gemm_choices = earlier_.content().gemm_choices;
      device_options_.gemm_choices_from = checkpoint_file();
      return {};
    }
    if (file.empty()) return {};
    GACC_TRY(check_writable(file));
    if (access(file.c_str(), F_OK) != 0) return {};
    device_options_.gemm_choices_from = file;
    device_options_.gemm_choices = GACC_TRY(read_file(file));
    return device_options_.gemm_choices.empty() ? Status::error("{} is empty", file) : Status();
  }

  // The algorithms that the first rank has measured; the bits of products depend on them.
  Status take_gemm_choices() {
    device_options_.gemm_choices = GACC_TRY(broadcast(ranks_, ""));
    device_options_.gemm_choices_from = "rank 0";
    device_.reset();  // one at a time: the arena may fill the machine
    device_ = GACC_TRY(open_device(arguments_.device, device_options_, artifact_));
    return {};
  }

  Status write_gemm_choices() {
    const std::string& file = arguments_.tune_gemm;
    if (file.empty()) return {};
    const std::string text = device_->gemm_choices();
    if (text.empty()) {
      say("gacc-exec: note: --tune-gemm: {} has no algorithms of matrix products to choose among\n",
          device_->name());
      return {};
    }
    const bool holds_it = device_options_.gemm_choices_from == file && device_options_.gemm_choices == text;
    return holds_it ? Status() : write_file_atomically(file, text);
  }

  Status check_best() {
    std::vector<std::string> known = artifact_.plan.metrics;
    known.insert(known.begin(), "loss");
    if (std::ranges::find(known, options_.best) != known.end()) return {};
    return Status::error("--best {}: the model has no such metric{} (it has {})", options_.best,
                         hint(options_.best, known), listed(known));
  }

  Status open_checkpoint() {
    const Arguments& given = arguments_;
    if (given.checkpoint.empty()) return {};
    if (given.only_evaluates() || given.asks()) {  // reads the file, and leaves the folder alone
      resumes_ = true;
      return earlier_.open(checkpoint_file());
    }
    if (first()) {
      GACC_TRY(folder_.open(given.checkpoint));
      resumes_ = given.resume && folder_.has_checkpoint();
      const std::string old = checkpoint_files(given.checkpoint)[1], next = free_name(old);
      if (given.resume && !resumes_)
        say("gacc-exec: no checkpoint in {}: starting from the beginning{}\n", given.checkpoint,
            old == next ? "" : fmt::format("; {} is not read unless it is called {}", old, folder_.file()));
      if (!given.resume && !folder_.name_for_old().empty())
        say("gacc-exec: without --resume the run starts from the beginning and will replace {}, which stays "
            "as {}{}\n",
            folder_.file(), old, old == next ? "" : fmt::format(" (and the one there as {})", next));
    } else {  // the folder is the first rank's; this one reads what is in it
      resumes_ = given.resume && access(checkpoint_file().c_str(), F_OK) == 0;
    }
    if (!resumes_) return {};
    GACC_TRY(earlier_.open(checkpoint_file()));
    options_.resume = &earlier_.content().train;
    return {};
  }

  // Whether the checkpoint is this model's, data's and command's; and the learning rate, which may differ.
  Status check_checkpoint() {
    Plan& plan = artifact_.plan;
    if (arguments_.checkpoint.empty()) return {};
    settings_ = settings_of(artifact_, data_, options_);
    if (arguments_.only_evaluates() || arguments_.asks()) {
      keep_to_model(settings_, earlier_.content().settings);
      return earlier_.check(plan, settings_);
    }
    if (resumes_) {
      GACC_TRY(earlier_.check(plan, settings_));
      const RunRate& was = earlier_.content().rate;
      if (!arguments_.lr && was.of_model != rate_.of_model)
        return Status::error("cannot resume from {}: optimizer.lr was {}, and is {} now; --lr says which",
                             checkpoint_file(), was.of_model, rate_.of_model);
      if (!arguments_.lr) plan.lr = was.used;
      const TrainState& state = earlier_.content().train;
      say("gacc-exec: resuming from {}: {}, {}, {} in the open window\n", folder_.file(),
          counted(state.epochs, "epoch"), counted(state.updates, "update"),
          counted(state.window_launches, "launch"));
      if (log_.is_open() && !log_.continues())
        say("gacc-exec: {} is not the log of the run before: a new one begins\n", arguments_.log);
    }
    rate_.used = plan.lr;
    return {};
  }

  Status save_checkpoint(Session& session, const TrainState& state, Progress& progress) {
    // The log must not be behind the checkpoint, whatever happens.
    GACC_TRY(log_.sync());
    const bool inside = opening_ && session.launches() > 0;
    const Checkpoint checkpoint{settings_,
                                rate_,
                                state,
                                inside ? opening_->log : log_.position(),
                                device_->gemm_choices(),
                                inside ? opening_->best.value_or(best_) : best_,
                                to_metadata(facts_)};
    // A checkpoint that the run does not come from stays: who reads that it will be replaced presses Ctrl-C,
    // and that writes one.
    const std::string kept = resumes_ || replaced_ ? "" : folder_.name_for_old();
    GACC_TRY(write_checkpoint(folder_.file(), checkpoint, artifact_.plan, session, kept));
    replaced_ = true;
    if (kept.empty()) return {};
    progress.clear();
    say("gacc-exec: the checkpoint that was in {} is kept as {}\n", folder_.file(), kept);
    return {};
  }

  Status work() {
    const Plan& plan = artifact_.plan;
    if (tunes_ && !first()) GACC_TRY(take_gemm_choices());
    exchange_.emplace(ranks_, *device_, plan);
    Session session(*device_, plan, ranks_.size() > 1 ? &*exchange_ : nullptr);
    GACC_TRY(session.open(artifact_));
    if (ranks_.size() > 1) {
      options_.ranks = &ranks_;
      const std::string why = GACC_TRY(exchange_->open_link());
      if (!why.empty() && device_->kind().starts_with("cuda") && !arguments_.quiet)
        say("gacc-exec: the sums of ranks go through the host: {}\n", why);
    }
    if (tunes_ && first()) GACC_TRY(broadcast(ranks_, device_->gemm_choices()));
    if (std::string note = device_->load_note(); !note.empty() && !arguments_.quiet) say("{}\n", note);
    GACC_TRY(write_gemm_choices());
    if (!arguments_.profile.empty()) GACC_TRY(device_->start_profile());
    GACC_TRY(begin(session, plan,
                   {.seed = static_cast<uint64_t>(plan.seed),
                    .lr = plan.lr,
                    .checkpoint = resumes_ ? &earlier_ : nullptr,
                    .weights = arguments_.load.empty() ? nullptr : &loaded_,
                    .adapter = arguments_.load_adapter.empty() ? nullptr : &adapter_}));

    if (!arguments_.predict.empty()) return predict_and_write(session);
    if (arguments_.generate) return generate_text(session);
    if (!log_.continues())
      GACC_TRY(log_.write(start_line(plan, {GACC_VERSION, std::string(device_->kind()), arguments_.data,
                                            arguments_.eval, arguments_.load, facts_, ranks_.size()})));
    began_ = true;
    Progress progress(plan, arguments_.quiet, first());
    if (!arguments_.checkpoint.empty() && first()) {
      options_.checkpoint = [&](const TrainState& state) {
        return save_checkpoint(session, state, progress);
      };
      options_.window_opens = [&] { opening_ = {log_.position()}; };
    } else if (!arguments_.checkpoint.empty() && plan.shard > 0) {  // the first rank's has a part of this one
      options_.checkpoint = [&](const TrainState&) { return share_for_checkpoint(plan, session); };
    }
    if (arguments_.only_evaluates()) return evaluate_and_write(session, progress);
    if (!arguments_.save_best.empty()) {
      GACC_TRY(restore_best());
      options_.save_best = [&] { return save_best(session); };
    } else if (saves_best_ && plan.shard > 0) {
      options_.save_best = [&] {
        return session.parameters().status();
      };  // what the first writes has a part of these
    }
    return train_and_write(session, progress);
  }

  Status predict_and_write(Session& session) {
    const std::string& path = arguments_.predict;
    std::string warning;
    Status status =
        predict(session, artifact_.plan, data_, path, options_.interrupted, result_.interrupted, warning);
    if (!warning.empty()) say("gacc-exec: {}\n", warning);
    if (status && !result_.interrupted && !arguments_.quiet)
      say("gacc-exec: wrote the outputs of {} to {}\n", counted(data_.samples, "sample"), path);
    return status;
  }

  Status generate_text(Session& session) {
    const auto begin = std::chrono::steady_clock::now();
    Status status = generate(session, artifact_.plan, text_, result_.interrupted);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    if (status && std::ferror(stdout)) return Status::error("cannot write standard output");
    if (status && !result_.interrupted && !arguments_.quiet && text_.tokens > 0)
      say("\ngacc-exec: {}, {:.3g} ms each\n", counted(text_.tokens, "token"),
          1000 * passed.count() / static_cast<double>(text_.tokens));
    return status;
  }

  Status evaluate_and_write(Session& session, Progress& progress) {
    const Plan& plan = artifact_.plan;
    Reporter reporter({plan, log_, events_, progress});
    EvaluationReport report;
    if (resumes_) {
      const TrainState& state = earlier_.content().train;
      report.epoch = state.epochs + (state.position > 0);
      report.updates = state.updates;
      result_.epochs = state.epochs;
      result_.updates = state.updates;
      result_.skipped = state.skipped;
    }
    Status status = evaluate_once(session, plan, eval_, options_, report, result_.interrupted);
    result_.seconds = report.seconds;
    if (status && !result_.interrupted) status = reporter.evaluated(report);
    return status ? log_.write(end_line(result_, device_->peak_bytes())) : status;
  }

  // Writes the parameters as they are, and keeps the file for checkpoints.
  Status save_best(Session& session) {
    const std::string& path = arguments_.save_best;
    const std::vector<NamedTensor> tensors = GACC_TRY(parameters_for(path, session));
    const Metadata metadata = own_metadata();
    if (arguments_.checkpoint.empty()) return save_safetensors(path, tensors, metadata);
    if (opening_ && !opening_->best) opening_->best = best_;
    best_ = GACC_TRY(safetensors_bytes(path, tensors, metadata));
    return write_file_atomically(path, best_);
  }

  // The file of --save-best may be that of an evaluation that this run has not made, or be gone.
  Status restore_best() {
    if (!resumes_ || earlier_.content().best.empty()) return {};
    best_ = earlier_.content().best;
    return write_file_atomically(arguments_.save_best, best_);
  }

  void say_nothing_to_do() const {
    const TrainOptions& options = options_;
    const int64_t worse = result_.best.worse;
    const std::optional<int64_t> epochs = epoch_limit(artifact_.plan, options);
    for (const auto& [noun, option, done, most] :
         {std::tuple("epoch", "--epochs", result_.epochs, epochs),
          {"update", "--updates", result_.updates, options.updates},
          {"launch", "--launches", result_.launches, options.launches}})
      if (most && done >= *most)
        return say("gacc-exec: nothing to do: {} of {} {} done; a larger {} goes on\n", done,
                   counted(*most, noun), *most == 1 ? "is" : "are", option);
    say("gacc-exec: nothing to do: {} in a row {} not better than the best; a larger --patience goes on\n",
        counted(worse, "evaluation"), worse == 1 ? "was" : "were");
  }

  Status verify_artifact() {
    const VerifyOptions options{.device = std::string(device_->kind()),
                                .device_options = device_options_,
                                .seed = options_.seed,
                                .lr = artifact_.plan.lr,
                                .shuffle = options_.shuffle,
                                .loaded = arguments_.load.empty() ? nullptr : &loaded_,
                                .compiler_folder = executable_folder(),
                                .open = open_artifact,
                                .interrupted = options_.interrupted,
                                .print = print_text};
    device_.reset();  // one at a time: the arena may fill the machine
    const VerifyResult result = GACC_TRY(verify(artifact_, data_, options));
    if (result.failed == 0) return {};
    return Status::error("--verify: {} of {} checks failed", result.failed, result.failed + result.passed);
  }

  Status train_and_write(Session& session, Progress& progress) {
    const Plan& plan = artifact_.plan;
    if (!arguments_.init_only) {
      Reporter reporter({plan, log_, events_, progress, options_.resume ? options_.resume->updates : 0,
                         options_.keeps_best()});
      progress.begin(epoch_limit(plan, options_).value_or(0), options_.updates.value_or(0),
                     expected_launches(plan, data_.samples, options_),
                     options_.resume ? static_cast<TrainCounts>(*options_.resume) : TrainCounts());
      const Dataset* eval = arguments_.eval.empty() ? nullptr : &eval_;
      Status status = train(session, plan, data_, eval, options_, reporter, result_);
      progress.clear();
      if (!status) return status;
      if (resumes_ && !result_.interrupted && result_.launches == options_.resume->launches)
        say_nothing_to_do();
      else if (options_.patience && result_.best.worse >= *options_.patience)
        progress.say(fmt::format("no better {} in {}: stopped; the best was {:.6g}, at update {}",
                                 options_.best, counted(result_.best.worse, "evaluation"), result_.best.value,
                                 result_.best.updates));
      if (result_.open_launches > 0)
        progress.say(fmt::format("the last window ({} of {} launches) was still open and is not applied",
                                 result_.open_launches, plan.accumulate));
    }
    if (!arguments_.dump_grads.empty()) {
      if (!result_.gradients.empty()) {
        GACC_TRY(save(arguments_.dump_grads, result_.gradients, to_metadata(facts_)));
      } else if (resumes_) {  // a run that had nothing left to do
        say("gacc-exec: note: nothing was launched: {} is not written\n", arguments_.dump_grads);
      } else if (!result_.interrupted) {
        return Status::error("--dump-grads {}: nothing was launched, so there are no gradients",
                             arguments_.dump_grads);
      }
    }
    std::vector<NamedTensor> tensors;
    if (saves_ && (first() || plan.shard > 0)) tensors = GACC_TRY(session.parameters());
    if (const std::string& path = arguments_.save_adapter; !path.empty()) {
      GACC_TRY(check_finite(tensors, path));
      GACC_TRY(save_adapter(path, plan, loaded_, tensors));
      written_ += fmt::format("; wrote {}", path);
    }
    if (!arguments_.save.empty()) {
      if (arguments_.merge) merge_adapters(plan, tensors);
      GACC_TRY(check_finite(tensors, arguments_.save));
      const bool published = !arguments_.save_as.empty();
      if (published) GACC_TRY(to_published(plan, loaded_, tensors));
      const Metadata metadata = published ? to_metadata(facts_) : own_metadata();
      GACC_TRY(save(arguments_.save, tensors, metadata));
    }
    if (!arguments_.profile.empty()) {
      std::vector<Timing> timings;
      GACC_TRY(device_->read_profile(timings));
      const std::string text = profile_text(plan, *device_, timings);
      GACC_TRY(write_file_atomically(arguments_.profile, text));
      written_ += fmt::format("; wrote {}", arguments_.profile);
    }
    if (ranks_.size() > 1 && exchange_->sums() > 0 && !arguments_.quiet)
      progress.say(fmt::format("{} ranks: {}, {} bytes sent by each for one{}", ranks_.size(),
                               counted(exchange_->sums(), "sum"), exchange_->bytes_sent() / exchange_->sums(),
                               sums_text()));
    if (device_->kind() == "cpu")
      if (const std::string text = process_memory_text(plan.arena_bytes); !text.empty() && !arguments_.quiet)
        progress.say(text);
    GACC_TRY(events_.close());
    return log_.write(end_line(result_, device_->peak_bytes()));
  }

  // The transport of the sums of ranks; on a link the host does not wait for them.
  std::string sums_text() const {
    if (exchange_->link() != nullptr) return ", by " + exchange_->link()->name();
    const double each = 1000 / static_cast<double>(exchange_->sums());
    return fmt::format(", {:.3g} ms each, after {:.3g} ms for the slowest rank", each * exchange_->seconds(),
                       each * exchange_->waited());
  }

  // Prints what a checking device found first: it may explain the error of the run.
  Status finish_device(Status status) {
    std::string reports;
    const Status finished = device_->finish(reports);
    if (!reports.empty()) print_stderr("{}{}", reports, reports.back() == '\n' ? "" : "\n");
    return status ? finished : status;
  }

  Collective& ranks_;
  // What is the first rank's to do: --tune-gemm, --save and --save-adapter, --save-best.
  const bool tunes_, saves_, saves_best_;
  const Arguments arguments_;
  RankPlace place_;
  Artifact artifact_;
  Dataset data_, eval_;
  DataFacts facts_;  // what the training data have taught, in this run or before
  Weights loaded_;
  Adapter adapter_;  // of --load-adapter
  DeviceOptions device_options_;
  std::unique_ptr<Device> device_;
  std::optional<RankExchange> exchange_;
  LogFile log_;
  EventFile events_;
  CheckpointFolder folder_;
  CheckpointReader earlier_;  // what to resume from, when `resumes_`
  bool resumes_ = false;
  bool replaced_ = false;  // the checkpoint that the run found
  Settings settings_;
  RunRate rate_;
  std::string best_;  // the file of --save-best, where checkpoints keep it
  // The log's end and that file as the open window found them, where a checkpoint inside it is of its start.
  struct Opening {
    LogPosition log;
    std::optional<std::string> best{};  // where the window has replaced it
  };
  std::optional<Opening> opening_;
  bool began_ = false;
  TrainOptions options_;
  GenerateOptions text_;
  TrainResult result_;
  std::string written_;  // for the message of an interrupted run
};

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  auto ranks = std::make_unique<Collective>();  // until it is known that there are others
  const auto give_up = [&](Exit status, const std::string& text) {
    if (ranks->fail(text)) fail(status, text);
    return ranks->end(status);
  };
  try {
    if (const std::optional<int> ended = parse_arguments(argc, argv, arguments)) return *ended;
    if (arguments.ranks.value_or(1) > 1)
      if (const Status status = start_ranks(*arguments.ranks, argc, argv); !status)
        return exit_status(status);
    handle_interrupts();  // before MPI makes threads
    Result<std::unique_ptr<Collective>> opened = open_collective({arguments.rank_timeout});
    if (!opened) return exit_status(opened.status());
    ranks = opened.take();
    return Run(arguments, *ranks).execute();
  } catch (const std::bad_alloc&) {
    return give_up(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return give_up(kBug, fmt::format("internal error: {}\nThis is a bug in gacc; please report it with the "
                                     "model file and the command line.",
                                     error.what()));
  }
}
