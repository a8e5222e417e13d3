// The modes of a run: train, evaluate, predict, generate, verify.
#include <fmt/ranges.h>
#include <nettle/sha2.h>

#include <array>
#include <bit>
#include <chrono>
#include <tuple>

#include "compiler/open_artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/plugin.h"
#include "runtime/run/export_check.h"
#include "runtime/run/self_check.h"
#include "runtime/tell/profile.h"
#include "runtime/tell/progress.h"
#include "runtime/text.h"
#include "tools/exec_reporter.h"
#include "tools/exec_run.h"

namespace gacc {

namespace {

// Shows on standard output what other ranks show, too.
Progress display_of(const Run& run) { return {run.artifact.plan, run.given.quiet, run.first()}; }

void say_confusion(const Run& run, const std::string& lines, Progress& progress) {
  if (!run.given.quiet && !lines.empty()) progress.say(lines);
}

// ---- training

void say_nothing_to_do(const Run& run) {
  const TrainOptions& options = run.options;
  const TrainResult& result = run.result;
  const std::optional<int64_t> epochs = epoch_limit(run.artifact.plan, options);
  for (const auto& [noun, option, done, most] : {std::tuple("epoch", "--epochs", result.epochs, epochs),
                                                 {"update", "--updates", result.updates, options.updates},
                                                 {"launch", "--launches", result.launches, options.launches}})
    if (most && done >= *most)
      return run.say("gacc-exec: nothing to do: {} of {} {} done; a larger {} goes on\n", done,
                     counted(*most, noun), *most == 1 ? "is" : "are", option);
  const int64_t worse = result.best.worse;
  run.say("gacc-exec: nothing to do: {} in a row {} not better than the best; a larger --patience goes on\n",
          counted(worse, "evaluation"), worse == 1 ? "was" : "were");
}

// Has the training loop write checkpoints and the best parameters.
void set_hooks(Run& run, Session& session, Progress& progress) {
  const Plan& plan = run.artifact.plan;
  if (!run.given.checkpoint.empty()) {
    if (run.first()) {
      run.options.checkpoint = [&](const TrainState& state) -> Status {
        GACC_TRY(run.log.sync());  // the log must not be behind the checkpoint, whatever happens
        return run.checkpoint.write(session, plan, state,
                                    {run.log.position(), run.device->gemm_choices(), run.facts}, progress);
      };
      run.options.window_opens = [&] { run.checkpoint.window_opens(run.log.position()); };
    } else if (plan.shard > 0) {  // the first rank's has a part of this one
      run.options.checkpoint = [&](const TrainState&) { return share_for_checkpoint(plan, session); };
    }
  }
  if (const std::optional<SaveForm> best = run.saved_as_best())
    run.options.save_best = [&, form = *best] {
      return run.checkpoint.save_best(session, form, {plan, run.loaded}, to_metadata(run.facts));
    };
  else if (run.saves_best && plan.shard > 0)  // what the first rank writes has a part of these
    run.options.save_best = [&] { return session.parameters().status(); };
}

// Returns what the run did and with what loss, for its last line.
std::string done_text(const Run& run, const Reporter& reporter) {
  const TrainResult& result = run.result;
  std::string text =
      fmt::format("done: {}, {}, {} in {:.2f} s", counted(result.updates, "update"),
                  counted(result.epochs, "epoch"), counted(result.samples, "sample"), result.seconds);
  if (result.skipped > 0) text += fmt::format(", {} skipped", counted(result.skipped, "update"));
  if (reporter.last_loss()) text += fmt::format("; loss {:.6g} in the last update", *reporter.last_loss());
  return text;
}

static_assert(std::endian::native == std::endian::little, "the elements are hashed as they lie in memory");

// Returns the SHA-256, in 64 hexadecimal digits, of what --save writes: for each tensor, in the order of their names'
// bytes, the name and then the elements, row-major, each as the four bytes of an f32, lowest first. The tensors are
// sorted by name.
std::string weights_hash(std::span<const NamedTensor> tensors) {
  sha256_ctx context;
  sha256_init(&context);
  const auto add = [&](const void* from, size_t bytes) {
    sha256_update(&context, bytes, static_cast<const uint8_t*>(from));
  };
  for (const NamedTensor& tensor : tensors) {
    add(tensor.name.data(), tensor.name.size());
    add(tensor.data.data(), tensor.data.size() * sizeof(float));
  }
  std::array<uint8_t, SHA256_DIGEST_SIZE> digest{};
  sha256_digest(&context, digest.size(), digest.data());
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

// Returns what makes the hash of --log-hash; with memory.shard other ranks have a part of the weights.
std::function<Result<std::string>()> hash_of_weights(const Run& run, Session& session) {
  if (!run.given.log_hash || !(run.first() || run.artifact.plan.shard > 0)) return {};
  return [&session]() -> Result<std::string> { return weights_hash(GACC_TRY(session.parameters())); };
}

// Trains, and says how it ended.
Status launch_all(Run& run, Session& session, Progress& progress) {
  const Plan& plan = run.artifact.plan;
  const TrainOptions& options = run.options;
  TrainResult& result = run.result;
  const int64_t before = options.resume ? options.resume->launches : 0;
  Reporter reporter({plan, run.log, run.events, progress, run.metric_units, hash_of_weights(run, session)},
                    options.resume ? options.resume->updates : 0, options.keeps_best());
  if (!run.about_data.empty()) progress.introduce("data: " + run.about_data);
  progress.begin(epoch_limit(plan, options).value_or(0), options.updates.value_or(0),
                 expected_launches(plan, run.data.samples, options),
                 options.resume ? static_cast<TrainCounts>(*options.resume) : TrainCounts());
  const Status status =
      train(session, plan, run.data, run.given.eval.empty() ? nullptr : &run.eval, options, reporter, result);
  progress.clear();
  if (!status) return status;
  say_confusion(run, reporter.confusion(), progress);
  if (options.resume && !result.interrupted && result.launches == before)
    say_nothing_to_do(run);
  else if (options.patience && result.best.worse >= *options.patience)
    progress.say(fmt::format("no better {} in {}: stopped; the best was {:.6g}, at update {}{}", options.best,
                             counted(result.best.worse, "evaluation"),
                             result.best.value * reporter.unit_of(options.best), result.best.updates,
                             run.saves_best ? "" : ", whose weights --save-best FILE would have kept"));
  if (result.open_launches > 0)
    progress.say(fmt::format(
        "the last window ({} of {} launches) was still open {}", result.open_launches, plan.accumulate,
        run.given.checkpoint.empty() ? "and is not applied"
                                     : "and is in the checkpoint: --resume goes on with it"));
  run.done = done_text(run, reporter);
  return {};
}

Status write_gradients(Run& run) {
  const std::string& path = run.given.dump_grads;
  if (path.empty()) return {};
  if (!run.result.gradients.empty()) {
    GACC_TRY(save_safetensors(path, run.result.gradients, to_metadata(run.facts)));
    run.wrote(path);
  } else if (run.checkpoint.resumes()) {  // a run that had nothing left to do
    run.say("gacc-exec: note: nothing was launched: {} is not written\n", path);
  } else if (!run.result.interrupted) {
    return Status::error("--dump-grads {}: nothing was launched, so there are no gradients", path);
  }
  return {};
}

Status write_parameters(Run& run, Session& session) {
  const Plan& plan = run.artifact.plan;
  std::vector<NamedTensor> tensors;
  const std::vector<SaveForm> forms = run.saved_at_end();
  if (run.saves && (run.first() || plan.shard > 0)) tensors = GACC_TRY(parameters_for(forms, plan, session));
  for (const SaveForm& form : forms) {
    GACC_TRY(save_parameters(form, plan, run.loaded, tensors, to_metadata(run.facts)));
    run.wrote(form.path);
  }
  return {};
}

// Puts what was written into the session, in the place of what it has, and compares what that computes. All files are
// checked before one ends the run.
Status check_written(Run& run, Session& session, const std::vector<float>& outputs) {
  std::vector<std::string> wrong;
  for (const SaveForm& form : run.saved_at_end()) {
    const ExportCheck check = GACC_TRY(
        check_export(session, run.artifact.plan, run.check_data(), form, run.weights_of_load(), outputs));
    GACC_TRY(run.log.write(check_line(check.file, check.samples, check.difference, check.bound)));
    print_text(
        fmt::format("check: {}: {} computed from it alone; largest difference {:.3g} of the largest output\n",
                    check.file, counted(check.samples, "sample"), check.difference));
    if (!check.holds())
      wrong.push_back(
          fmt::format("{}: what it computes is off by {:.3g} of the largest output, and {:.3g} is rounding",
                      check.file, check.difference, check.bound));
  }
  return wrong.empty() ? Status() : Status::error(problem_list("--check", wrong));
}

Status write_profile(Run& run) {
  if (run.given.profile.empty()) return {};
  std::vector<Timing> timings;
  GACC_TRY(run.device->read_profile(timings));
  GACC_TRY(write_file_atomically(run.given.profile, profile_text(run.artifact.plan, *run.device, timings)));
  run.wrote(run.given.profile);
  return {};
}

// Says where the trained parameters are, if they are not what somebody would expect.
void say_what_is_kept(Run& run) {
  const Arguments& given = run.given;
  const bool keeps =
      run.saves || !given.checkpoint.empty() || (run.saves_best && !run.result.best.metric.empty());
  const std::optional<SaveForm> best = run.saved_as_best();  // the first rank's
  if (best && !run.result.best.metric.empty()) run.wrote(best->path);
  if (!given.checkpoint.empty() && !run.result.interrupted)
    run.written += fmt::format("; the run's state is in {}", run.checkpoint.file());
  if (!keeps) run.written += "; the weights are not kept (--save FILE, or --checkpoint FOLDER, keeps them)";
  if (run.saves && given.trains() && run.result.updates == 0 && !run.result.interrupted)
    run.say("gacc-exec: warning: no update was made: {} has the {} weights\n",
            given.save.empty() ? given.save_adapter : given.save, given.load.empty() ? "initial" : "loaded");
}

// Returns the transport of the sums of ranks; on a link the host does not wait for them.
std::string sums_text(const RankExchange& exchange) {
  if (exchange.link() != nullptr) return ", by " + exchange.link()->name();
  const double each = 1000 / static_cast<double>(exchange.sums());
  return fmt::format(", {:.3g} ms each, after {:.3g} ms for the slowest rank", each * exchange.seconds(),
                     each * exchange.waited());
}

void say_costs(const Run& run, Progress& progress) {
  if (run.given.quiet) return;
  const RankExchange& exchange = *run.exchange;
  if (run.ranks.size() > 1 && exchange.sums() > 0)
    progress.say(fmt::format("{} ranks: {}, {} bytes sent by each for one{}", run.ranks.size(),
                             counted(exchange.sums(), "sum"), exchange.bytes_sent() / exchange.sums(),
                             sums_text(exchange)));
  const bool measured = run.device->kind() == "cpu";
  const Plan& plan = run.artifact.plan;
  const std::string memory = measured ? process_memory_text(plan.arena_bytes, plan.host_bytes) : "";
  if (!memory.empty()) progress.say(memory);
}

}  // namespace

Status train_parameters(Run& run, Session& session) {
  GACC_TRY(run.begin_log());
  Progress progress = display_of(run);
  set_hooks(run, session, progress);
  if (run.given.mode() == Mode::init_only) {
    run.done = "done: initialised, nothing was launched";
  } else {
    if (const std::optional<SaveForm> best = run.saved_as_best())
      GACC_TRY(run.checkpoint.restore_best(*best, {run.artifact.plan, run.loaded}));
    const Status status = launch_all(run, session, progress);
    if (!session.recheck().counts().difference.empty())
      GACC_TRY(run.log.write(recheck_line(session.recheck().counts())));
    GACC_TRY(status);
  }
  GACC_TRY(write_gradients(run));
  const bool checks = run.given.check > 0 && !run.result.interrupted;
  std::vector<float> outputs;
  if (checks)
    outputs = GACC_TRY(first_outputs(session, run.artifact.plan, run.check_data(), run.given.check));
  GACC_TRY(write_parameters(run, session));
  GACC_TRY(write_profile(run));
  say_what_is_kept(run);
  say_costs(run, progress);
  GACC_TRY(run.events.close());
  const Status agrees = checks ? check_written(run, session, outputs) : Status();
  GACC_TRY(run.log.write(end_line(run.result, run.device->peak_bytes(), session.recheck().counts())));
  return agrees;
}

Status evaluate_parameters(Run& run, Session& session) {
  GACC_TRY(run.begin_log());
  const Plan& plan = run.artifact.plan;
  TrainResult& result = run.result;
  Progress progress = display_of(run);
  Reporter reporter({plan, run.log, run.events, progress, run.metric_units});
  EvaluationReport report;
  if (run.checkpoint.resumes()) {
    const TrainState& state = run.checkpoint.earlier().train;
    report.epoch = state.epochs + (state.position > 0);
    report.updates = state.updates;
    result.epochs = state.epochs;
    result.updates = state.updates;
    result.skipped = state.skipped;
  }
  Status status = evaluate_once(session, plan, run.eval, run.options, report, result.interrupted);
  result.seconds = report.seconds;
  if (status && !result.interrupted) status = reporter.evaluated(report);
  say_confusion(run, reporter.confusion(), progress);
  if (status) status = printed();
  return status ? run.log.write(end_line(result, run.device->peak_bytes())) : status;
}

Status write_predictions(Run& run, Session& session) {
  const std::string& path = run.given.predict;
  std::string warning;
  EvaluationReport report;
  // The loss and the metrics follow from the outputs, or need a pass of their own.
  const Dataset* const labelled = run.labelled;
  const bool at_once =
      labelled != nullptr && run.artifact.plan.predict.measured && labelled->samples == run.data.samples;
  GACC_TRY(predict(session, run.artifact.plan, at_once ? *labelled : run.data, path, run.outputs,
                   run.options.interrupted, run.result.interrupted, warning,
                   at_once ? &report.result : nullptr));
  if (!warning.empty()) run.say("gacc-exec: {}\n", warning);
  const std::string& remark = run.outputs.remark;
  run.done = fmt::format("wrote the outputs of {} to {}{}{}", counted(run.data.samples, "sample"), path,
                         remark.empty() ? "" : ", ", remark);
  if (labelled == nullptr || run.result.interrupted) return {};
  if (!at_once)
    GACC_TRY(
        evaluate_once(session, run.artifact.plan, *labelled, run.options, report, run.result.interrupted));
  report.show_in(run.metric_units);
  if (run.result.interrupted) return {};
  run.say("{}\n", evaluation_text(report, run.artifact.plan));
  const std::string confusion = confusion_text(report.result, run.artifact.plan);
  if (!run.given.quiet && !confusion.empty()) run.say("{}\n", confusion);
  return {};
}

// Generates for each prompt of a file, and prints a line for each.
Status generate_lines(Run& run, Session& session, int64_t& tokens) {
  GenerateOptions options = run.text;
  std::string line;
  options.print = [&](std::string_view text) { line += line_of(text); };
  for (const std::string& prompt : run.prompts) {
    line.clear();
    options.prompt = prompt;
    tokens += GACC_TRY(generate(session, run.artifact.plan, options, run.result.interrupted));
    if (run.result.interrupted) break;
    print_text(line + '\n');
  }
  return {};
}

Status generate_text(Run& run, Session& session) {
  const auto begin = std::chrono::steady_clock::now();
  int64_t tokens = 0;
  if (!run.prompts.empty()) {
    GACC_TRY(generate_lines(run, session, tokens));
  } else {
    tokens = GACC_TRY(generate(session, run.artifact.plan, run.text, run.result.interrupted));
    if (tokens > 0 && writes_numbers(run.artifact.plan)) print_text("\n");
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  GACC_TRY(printed());
  if (tokens == 0 || run.result.interrupted) return {};
  if (!run.given.quiet && run.prompts.empty()) run.say("\n");
  run.done = fmt::format("{}, {:.3g} ms each", counted(tokens, "token"),
                         1000 * passed.count() / static_cast<double>(tokens));
  return {};
}

Status verify_artifact(Run& run) {
  const VerifyOptions options{.device = std::string(run.device->kind()),
                              .device_options = run.device_options,
                              .seed = run.options.seed,
                              .lr = run.artifact.plan.lr,
                              .shuffle = run.options.shuffle,
                              .loaded = run.weights_of_load(),
                              .class_weights = class_weights(run.facts, run.artifact.plan),
                              .compiler_folder = executable_folder(),
                              .open = open_artifact,
                              .interrupted = run.options.interrupted,
                              .print = print_text};
  run.device.reset();  // one at a time: the arena may fill the machine
  const Result<VerifyResult> result = verify(run.artifact, run.data, options);
  run.result.interrupted = !result && run.options.interrupted();
  if (run.result.interrupted) return {};
  GACC_TRY(result.status());
  if (result->failed == 0) return printed();
  return Status::error("--verify: {} of {} checks failed", result->failed, result->failed + result->passed);
}

}  // namespace gacc
