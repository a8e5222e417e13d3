#include "tools/exec_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <bit>

#include "compiler/compare_config.h"
#include "compiler/open_artifact.h"
#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/data/data_summary.h"
#include "runtime/data/spec.h"
#include "runtime/long_work.h"
#include "runtime/run/begin.h"
#include "runtime/run/open_device.h"
#include "runtime/run/rates.h"
#include "runtime/text.h"

namespace gacc {

void print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Status printed() { return std::ferror(stdout) ? Status::error("cannot write standard output") : Status(); }

namespace {

// Returns whether a file or device has not taken all of standard output. A reader that has gone, and an output that was
// closed from the start, want nothing.
bool is_lost() {
  struct stat out {};
  return std::ferror(stdout) != 0 && fstat(STDOUT_FILENO, &out) == 0 &&
         (S_ISREG(out.st_mode) || S_ISCHR(out.st_mode));
}

}  // namespace

Status check_ranks(const Plan& plan, Mode mode, int64_t ranks) {
  if (ranks == 1) return {};
  for (const auto& [one, option] :
       {std::pair(Mode::verify, "--verify"), {Mode::predict, "--predict"}, {Mode::generate, "--generate"}})
    if (mode == one) return Status::error("{} works in one process: start it without a launcher", option);
  if (ranks <= plan.lanes) return {};
  const std::string all = fmt::format(
      "{} ranks, and every rank needs a lane: the artifact has train.lanes = {}, with train.accumulate "
      "= {} and train.micro_batch = {}. Start at most {}",
      ranks, plan.lanes, plan.accumulate, plan.micro_batch, plan.lanes);
  constexpr int64_t kOffered = 1 << 20;  // more is hardly meant
  if (ranks > kOffered) return Status::error("{}", all);
  const auto enough = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(ranks)));
  return Status::error(
      "{}, or compile with --set train.lanes={}, which needs train.accumulate={} at least (a smaller "
      "train.micro_batch keeps the effective batch)",
      all, enough, enough);
}

Run::Run(const Arguments& arguments, Collective& all, std::function<bool()> interrupted)
    : ranks(all),
      tunes(!arguments.tune_gemm.empty()),
      saves(!arguments.save.empty() || !arguments.save_adapter.empty()),
      saves_best(!arguments.save_best.empty() || !arguments.save_best_adapter.empty()),
      given(all.rank() == 0 ? arguments : without_outputs(arguments)),
      checkpoint(given, all.rank() == 0),
      options(arguments.train),
      text(arguments.text),
      agreed_(facts_of_options(arguments)) {
  options.keep_gradients = !arguments.dump_grads.empty();
  options.interrupted = std::move(interrupted);
}

int Run::execute() {
  Status status = prepare_together();
  if (status) status = given.mode() == Mode::verify ? verify_artifact(*this) : work();
  if (device) status = finish_device(std::move(status));
  // The log tells of a run that began, however it ended; before that nothing is left of it.
  if (const Status closed = began_ ? log.commit() : Status(); status) status = closed;
  if (!status) {
    if (ranks.fail(status.text())) fail(kFailed, status.text());
    return ranks.end(kFailed);
  }
  say_end();
  if (is_lost() && !result.interrupted) {
    const bool shows_results = given.mode() != Mode::train && given.mode() != Mode::init_only;
    if (shows_results) {
      fail(kFailed, "cannot write standard output: what was printed is not whole");
      return ranks.end(kFailed);
    }
    say("gacc-exec: note: standard output has not taken all that was printed; the run and its files are "
        "whole\n");
  }
  return ranks.end(result.interrupted ? kInterrupted : kDone);
}

void Run::say_end() const {
  if (!first()) return;
  const bool writes_all = given.mode() == Mode::train || given.mode() == Mode::init_only;
  if (result.interrupted) {
    if (!writes_all) return say("gacc-exec: interrupted\n");
    const std::string resumes =
        given.checkpoint.empty() ? "" : fmt::format("; --resume continues from {}", checkpoint.file());
    return say("gacc-exec: interrupted in epoch {} after {}{}{}\n", result.epochs + 1,
               counted(result.updates, "update"), written, resumes);
  }
  std::string line = done + written;
  if (given.device == "emulate")
    line += fmt::format("{}every access kept to the plan", line.empty() ? "" : "; ");
  if (line.empty()) return;
  if (writes_all) return print_text(line + "\n");
  if (!given.quiet) say("gacc-exec: {}\n", line);
}

Status Run::prepare_together() {
  place_ = GACC_TRY(find_place(ranks));
  const Status status = prepare();
  return agree(ranks, status, status ? facts_of_rank() : Facts());
}

std::vector<SaveForm> Run::saved_at_end() const {
  std::vector<SaveForm> forms;
  if (!given.save_adapter.empty())
    forms.push_back({.option = "--save-adapter",
                     .path = given.save_adapter,
                     .adapter = true,
                     .like = is_gguf(given.save_adapter) ? given.like : ""});
  if (!given.save.empty()) forms.push_back(form_of("--save", given.save));
  return forms;
}

std::optional<SaveForm> Run::saved_as_best() const {
  if (!given.save_best_adapter.empty())
    return SaveForm{.option = "--save-best-adapter", .path = given.save_best_adapter, .adapter = true};
  if (given.save_best.empty()) return std::nullopt;
  return form_of("--save-best", given.save_best);
}

SaveForm Run::form_of(const char* option, const std::string& path) const {
  return {.option = option,
          .path = path,
          .merge = given.merge,
          .published = !given.save_as.empty(),
          .dtype = stored_dtype(given.save_type),
          .like = option == std::string_view("--save") && (is_gguf(path) || !is_gguf(given.save_adapter))
                      ? given.like
                      : ""};
}

Status Run::prepare() {
  LongWork work(fmt::format("reading {}", given.artifact));
  artifact = GACC_TRY(load_artifact(given.artifact));
  const ir::Module module = GACC_TRY(check_artifact(artifact, given.artifact));
  Plan& plan = artifact.plan;
  lr_of_model_ = plan.lr;
  if (given.seed) plan.seed = *given.seed;
  if (given.lr) plan.lr = *given.lr;
  options.shuffle = plan.shuffle && !given.no_shuffle;
  options.seed = static_cast<uint64_t>(plan.seed);

  GACC_TRY(check_ranks(plan, given.mode(), ranks.size()));
  GACC_TRY(check_best());
  if (given.mode() == Mode::predict || given.check > 0) GACC_TRY(check_predict(plan));
  if (given.check > 0 && ranks.size() > 1)
    return Status::error("--check works in one process: start it without a launcher");
  if (given.mode() == Mode::generate) {
    text.tokens = *given.generate;
    text.seed = options.seed;
    text.interrupted = options.interrupted;
    text.print = print_text;
    if (!given.prompts.empty()) {
      text.prompt.clear();
      prompts = GACC_TRY(read_prompts(plan, given.prompts));
      text.prompt = prompts.front();
    }
    GACC_TRY(check_generate(plan, text));
  }
  for (const std::string* path : {&given.predict, &given.dump_grads, &given.profile})
    GACC_TRY(check_writable(*path));
  if (!given.checkpoint.empty()) work.now(fmt::format("reading the checkpoint in {}", given.checkpoint));
  GACC_TRY(checkpoint.open());
  const bool resumes = checkpoint.resumes();
  if (resumes && given.trains()) options.resume = &checkpoint.earlier().train;
  if (!given.log.empty())
    GACC_TRY(log.open(given.log, resumes ? std::optional(checkpoint.earlier().log) : std::nullopt));
  GACC_TRY(load_parameters());
  if (given.mode() != Mode::init_only) {
    if (given.mode() == Mode::predict)
      GACC_TRY(load_predicted(/*labels=*/module.settings.predict.layer->empty()));
    else if (!given.data.empty())
      GACC_TRY(load_data(given.data, given.asks() ? DataUse::prediction : DataUse::training, data));
    if (!given.eval.empty()) GACC_TRY(load_data(given.eval, DataUse::evaluation, eval));
    GACC_TRY(checkpoint.check(artifact, data, options, lr_of_model_));
  } else if (given.check > 0) {
    GACC_TRY(load_data(given.data, DataUse::prediction, data));
  }
  if (given.mode() == Mode::predict) {
    outputs = GACC_TRY(output_form(plan, *module.settings.predict.layer, given.predict, facts));
    outputs.rows = data.rows;
    if (!data.rows.empty() && outputs.columns.empty())
      say("gacc-exec: note: rows are left out, so the outputs are not those of the rows one by one: a file "
          "that "
          "ends in .csv has their numbers\n");
  }
  find_units();
  if (given.trains()) {
    if (resumes && log.is_open() && !log.continues())
      say("gacc-exec: {} is not the log of the run before: a new one begins\n", given.log);
    if (plan.plateau && given.eval.empty())
      say("gacc-exec: note: without --eval the schedule \"plateau\" never cuts the rate\n");
    GACC_TRY(check_can_update(plan, data.samples, options));
    if (!resumes) look_at_data();
    say_settings();
  }
  if (!given.tensorboard.empty()) {
    std::optional<int64_t> step;  // what an earlier run has shown beyond it is shown anew
    if (given.resume) step = resumes ? checkpoint.earlier().train.updates : 0;
    GACC_TRY(events.open(given.tensorboard, step));
  }
  std::string note;
  device_options.threads = given.threads > 0 ? given.threads : place_.threads;
  device_options.local_rank = place_.local_rank;
  if (given.gemm != "auto")
    device_options.gemm = given.gemm == "cublas" ? GemmChoice::cublas : GemmChoice::builtin;
  GACC_TRY(read_gemm_choices());
  device = GACC_TRY(open_device(given.device, device_options, artifact, &note));
  if (!note.empty() && !given.quiet) say("{}\n", note);
  if (given.gemm != "auto" && device->kind() == "cpu")
    say("gacc-exec: note: --gemm {} changes nothing: it is for a GPU, and this run is on the CPU\n",
        given.gemm);
  if (constexpr int64_t kDefault = 60; given.rank_timeout != kDefault && ranks.size() == 1)
    say("gacc-exec: note: --rank-timeout changes nothing: this run has one rank (--ranks N)\n");
  return {};
}

// Finds what the training data are, and says what about them hardly was meant.
void Run::look_at_data() {
  const DataSummary summary = summarise(data, artifact.plan, facts);
  about_data = summary.text;
  if (given.data == given.eval) about_data += "; --eval has the same samples, and says nothing of new ones";
  for (const std::string& warning : summary.warnings) say("gacc-exec: warning: {}\n", warning);
}

// Says which limits and settings change nothing, or hardly were meant.
void Run::say_settings() const {
  const Plan& plan = artifact.plan;
  const int64_t batch = plan.micro_batch * plan.accumulate;
  for (const auto& [option, limit] : {std::pair("--epochs", options.epochs),
                                      {"--updates", options.updates},
                                      {"--launches", options.launches}})
    if (limit == 0) say("gacc-exec: note: {} 0: nothing is trained\n", option);
  const int64_t updates = updates_of_run(plan, data.samples, options);
  if (options.pause_at && *options.pause_at > updates)
    say("gacc-exec: note: --pause-at {} changes nothing: the run has {}\n", *options.pause_at,
        counted(updates, "update"));
  const Result<Spec> trained = parse_spec(given.data), judged = parse_spec(given.eval);
  if (trained && judged && trained->path == judged->path && trained->files == judged->files &&
      judged->has("split") && !trained->has("split") && trained->option("split") != "train")
    say("gacc-exec: warning: what --eval holds out is trained on, too: add split=train to --data\n");
  if (plan.lr == 0) say("gacc-exec: warning: the learning rate is 0: the parameters stay as they are\n");
  if (plan.micro_batch > data.samples)
    say("gacc-exec: warning: the data have {}, fewer than the {} of a micro-batch: compile with --set "
        "train.micro_batch={}\n",
        counted(data.samples, "sample"), plan.micro_batch, data.samples);
  constexpr int64_t kMany = 32;
  if (batch == 1 && data.samples >= kMany)
    say("gacc-exec: warning: each sample makes an update of its own (train.micro_batch x train.accumulate is "
        "1 x 1): "
        "compile with --set train.micro_batch=32 for larger batches\n");
}

// Returns what decides bits or the course of the run.
Facts Run::facts_of_rank() const {
  if (ranks.size() == 1) return {};
  Facts all;
  const auto add = [&](const char* name, const auto& value) {
    all.emplace_back(name, fmt::format("{}", value));
  };
  add("gacc", GACC_VERSION);
  add("the artifact's checksum", fmt::format("{:08x}", crc32_of(artifact.ptx, crc32_of(artifact.ir))));
  add("the device", device ? device->alike() : "none");
  for (const auto& [name, value] : settings_of(artifact, data, options)) all.emplace_back(name, value);
  for (const auto& [name, value] : settings_of(artifact, eval, options))
    if (name.starts_with("the training data's")) all.emplace_back("--eval: " + name, value);
  add("the number of samples of --eval", eval.samples);
  add("the learning rate", artifact.plan.lr);
  all.insert(all.end(), agreed_.begin(), agreed_.end());
  uint32_t parameters = 0;
  for (const std::vector<StoredTensor>* tensors : {&loaded.tensors(), &adapter.tensors()})
    for (const StoredTensor& tensor : *tensors)
      for (const std::string_view part : {std::string_view(tensor.name), tensor.bytes})
        parameters = crc32_of(part, parameters);
  add("--load: the parameters' checksum", fmt::format("{:08x}", parameters));
  add("launches before the checkpoint", checkpoint.resumes() ? checkpoint.earlier().train.launches : 0);
  return all;
}

Status Run::check_best() const {
  const Status known = check_metric(artifact.plan, options.best);
  return known ? known : Status::error("--best {}: {}", options.best, known.text());
}

// Opens the file of --load, and reads what is known of the data: in a run that goes on, from its checkpoint.
Status Run::load_parameters() {
  const std::string& file = given.load;
  const Plan& plan = artifact.plan;
  Metadata metadata;
  if (!file.empty()) {
    GACC_TRY(compare_config(file, plan));
    GACC_TRY(loaded.open(file, plan));
    metadata = loaded.metadata();
    if (const std::string blocks = loaded.blocks_text(); !blocks.empty() && !given.quiet)
      say("gacc-exec: {}: {}\n", file, blocks);
    if (const size_t kept = loaded.missing().size(); kept > 0)
      say("gacc-exec: {} lacks {}, which keep{} start: {}\n", file, counted(kept, "parameter"),
          kept == 1 ? "s its" : " their", fmt::join(loaded.missing(), ", "));
    if (given.load_adapter.empty() && is_adapter(file))
      say("gacc-exec: warning: {0} has adapters beside its weights (adapter_config.json), and --load "
          "takes the weights alone; --load-adapter {0} takes the adapters\n",
          file);
  }
  if (!given.load_adapter.empty()) {
    GACC_TRY(adapter.open(given.load_adapter, plan));
    if (const std::vector<std::string>& kept = adapter.missing(); !kept.empty())
      say("gacc-exec: {} lacks {} trained beside the adapters, which keep{} start: {}\n", given.load_adapter,
          counted(static_cast<int64_t>(kept.size()), "parameter"), kept.size() == 1 ? "s its" : " their",
          fmt::join(kept, ", "));
  }
  GACC_TRY(check_saving());
  const bool resumes = checkpoint.resumes();
  if (given.trains() && !plan.adapters.empty() && file.empty() && !resumes)
    say("gacc-exec: warning: the model has adapters, and without --load they are trained on weights drawn at "
        "random\n");
  const auto is_adapters = [&](const StoredTensor& tensor) { return is_of_adapter(plan, tensor.name); };
  if (!given.trains() && !given.init_only && !plan.adapters.empty() && given.load_adapter.empty() &&
      !resumes && !file.empty() && std::ranges::none_of(loaded.tensors(), is_adapters))
    say("gacc-exec: note: the model has adapters, and none are loaded (--load-adapter FOLDER): what follows "
        "is the base model's\n");
  if (resumes) metadata = checkpoint.earlier().data;
  return read_facts(metadata, resumes ? checkpoint.file() : file, plan, facts);
}

// Checks that the parameters can be written as they are asked for.
Status Run::check_saving() const {
  if (!given.like.empty()) GACC_TRY(compare_config(given.like, artifact.plan));
  for (const SaveForm& form : saved_at_end()) GACC_TRY(check_save(form, artifact.plan, loaded));
  const std::optional<SaveForm> best = saved_as_best();
  return best ? check_save(*best, artifact.plan, loaded) : Status();
}

void Run::say_remarks(const Dataset& of) const {
  for (const std::string& remark : of.remarks) say("gacc-exec: {}\n", remark);
}

Status Run::load_data(const std::string& spec, DataUse use, Dataset& to) {
  const LongWork work(fmt::format("reading {}", spec));
  Status status = load_dataset(spec, artifact.plan, use, facts, to);
  say_remarks(to);
  if (!status && use == DataUse::evaluation) return Status::error("--eval: {}", status.text());
  return status;
}

// Loads the data of --predict, with their labels where they have some that fit: the loss is measured beside. It takes
// a second set with the labels where rows without one are predicted, too, and after a pipe, which is read once.
Status Run::load_predicted(bool labels) {
  const Spec spec = GACC_TRY(parse_spec(given.data));
  const auto is_pipe = [](const std::string& path) {
    const auto identity = identity_of(path);
    return identity && identity->pipe;
  };
  const bool apart = spec.option("missing") == "drop" || std::ranges::any_of(data_files(given.data), is_pipe);
  if (apart || !labels) GACC_TRY(load_data(given.data, DataUse::prediction, data));
  if (!labels) return {};
  Dataset& all = apart ? eval : data;
  const Status status = load_dataset(given.data, artifact.plan, DataUse::evaluation, facts, all);
  if (status) {
    labelled = &all;
    if (!apart) say_remarks(all);
    return {};
  }
  bool found = false;
  for (size_t i = 0; i < all.columns.size(); ++i)
    found |= artifact.plan.inputs[i].target && (all.columns[i].found || all.columns[i].present());
  all = {};
  if (!apart) GACC_TRY(load_data(given.data, DataUse::prediction, data));
  if (found) say("gacc-exec: note: nothing is measured: {}\n", status.text());
  return {};
}

// Finds the units of metrics where the target is normalised by its data: mae and rmse are shown in its own, if these
// are one number.
void Run::find_units() {
  const Plan& plan = artifact.plan;
  metric_units.assign(plan.metrics.size(), 1);
  if (given.mode() != Mode::train && eval.samples == 0 && labelled == nullptr) return;
  for (const PlanInput& input : plan.inputs) {
    if (!input.target) continue;
    if (!input.normalize_data) {
      if (!input.std.empty() && input.dtype == DType::f32)
        say("gacc-exec: note: the target {} is normalised by the model file: losses, metrics and predictions "
            "are in units of its deviation\n",
            in_quotes(input.name));
      continue;
    }
    const std::vector<double>& std = facts[input.name].std;
    const bool one = std.size() == 1;
    for (size_t i = 0; i < plan.metrics.size(); ++i)
      if (one && (plan.metrics[i] == "mae" || plan.metrics[i] == "rmse")) metric_units[i] = std[0];
    say("gacc-exec: note: the target {} is normalised by its data: losses are in units of its deviation{}\n",
        in_quotes(input.name),
        one ? fmt::format(" ({:.6g}), mae and rmse in its own", std[0]) : "s, mae and rmse too");
  }
}

// ---- the algorithms of matrix products

// Reads them: a run that goes on takes those that it began with.
Status Run::read_gemm_choices() {
  const std::string& file = given.tune_gemm;
  device_options.tune_gemm = !file.empty();
  if (checkpoint.resumes() && !checkpoint.earlier().gemm_choices.empty()) {
    device_options.gemm_choices = checkpoint.earlier().gemm_choices;
    device_options.gemm_choices_from = checkpoint.file();
    return {};
  }
  if (file.empty()) return {};
  GACC_TRY(check_writable(file));
  if (access(file.c_str(), F_OK) != 0) return {};
  device_options.gemm_choices_from = file;
  device_options.gemm_choices = GACC_TRY(read_file(file));
  return device_options.gemm_choices.empty() ? Status::error("{} is empty", file) : Status();
}

// Takes those that the first rank has measured; the bits of products depend on them.
Status Run::take_gemm_choices() {
  device_options.gemm_choices = GACC_TRY(broadcast(ranks, ""));
  device_options.gemm_choices_from = "rank 0";
  device.reset();  // one at a time: the arena may fill the machine
  device = GACC_TRY(open_device(given.device, device_options, artifact));
  return {};
}

Status Run::write_gemm_choices() {
  const std::string& file = given.tune_gemm;
  if (file.empty()) return {};
  const std::string choices = device->gemm_choices();
  if (choices.empty()) {
    say("gacc-exec: note: --tune-gemm: {} has no algorithms of matrix products to choose among\n",
        device->name());
    return {};
  }
  const bool holds_it = device_options.gemm_choices_from == file && device_options.gemm_choices == choices;
  return holds_it ? Status() : write_file_atomically(file, choices);
}

// ---- the session

Status Run::open_session(Session& session) {
  {
    const LongWork work(fmt::format("making the step ready for {}", device->name()));
    GACC_TRY(session.open(artifact));
  }
  if (ranks.size() > 1) {
    options.ranks = &ranks;
    const std::string why = GACC_TRY(exchange->open_link());
    if (!why.empty() && device->kind().starts_with("cuda") && !given.quiet)
      say("gacc-exec: the sums of ranks go through the host: {}\n", why);
  }
  if (tunes && first()) GACC_TRY(broadcast(ranks, device->gemm_choices()));
  if (const std::string note = device->load_note(); !note.empty() && !given.quiet) say("{}\n", note);
  GACC_TRY(write_gemm_choices());
  return given.profile.empty() ? Status() : device->start_profile();
}

Status Run::begin_log() {
  began_ = true;
  if (log.continues()) return {};
  return log.write(start_line(
      artifact.plan, {GACC_VERSION, std::string(device->kind()), given.data, given.eval, given.load, facts,
                      ranks.size(), given.log_hash ? given.command : std::vector<std::string>()}));
}

Status Run::work() {
  if (tunes && !first()) GACC_TRY(take_gemm_choices());
  const Plan& plan = artifact.plan;
  exchange.emplace(ranks, *device, plan);
  Session session(*device, plan, ranks.size() > 1 ? &*exchange : nullptr);
  GACC_TRY(open_session(session));
  GACC_TRY(begin(session, plan,
                 {.seed = static_cast<uint64_t>(plan.seed),
                  .lr = plan.lr,
                  .checkpoint = checkpoint.reader(),
                  .weights = weights_of_load(),
                  .adapter = given.load_adapter.empty() ? nullptr : &adapter,
                  .class_weights = class_weights(facts, plan)}));
  session.recheck().begin(given.recheck, checkpoint.resumes() ? checkpoint.earlier().train : TrainState());
  switch (given.mode()) {
    case Mode::predict:
      return write_predictions(*this, session);
    case Mode::generate:
      return generate_text(*this, session);
    case Mode::evaluate:
      return evaluate_parameters(*this, session);
    default:
      return train_parameters(*this, session);
  }
}

// Prints what a checking device found first: it may explain the error of the run.
Status Run::finish_device(Status status) {
  std::string reports;
  const Status finished = device->finish(reports);
  if (!reports.empty()) print_stderr("{}{}", reports, reports.back() == '\n' ? "" : "\n");
  return status ? finished : status;
}

}  // namespace gacc
