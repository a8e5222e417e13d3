#include "tools/exec_arguments.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/artifact.h"
#include "runtime/checkpoint.h"
#include "runtime/data/spec.h"
#include "runtime/log.h"
#include "tools/file_uses.h"

namespace gacc {

namespace {

// All options that read or write files.
std::vector<FileOption> file_options(const Arguments& given) {
  using enum FileUse;
  const std::string events = given.tensorboard.empty() ? "" : given.tensorboard + "/events.out.tfevents";
  return {{"ARTIFACT", reads, {given.artifact}},
          {"--data", reads, data_files(given.data)},
          {"--eval", reads, data_files(given.eval)},
          {"--load", reads, {given.load}},
          {"--save", writes, {given.save}, "--load"},  // training in place
          {"--save-best", writes, {given.save_best}},
          {"--log", writes, log_files(given.log)},
          {"--dump-grads", writes, {given.dump_grads}},
          {"--tune-gemm", updates, {given.tune_gemm}},
          {"--profile", writes, {given.profile}},
          {"--checkpoint", given.resume ? updates : writes, checkpoint_files(given.checkpoint)},
          {"--tensorboard", writes, {events}}};
}

// What the option parser cannot see; empty when the command line makes sense.
std::string wrong_command(const Arguments& given) {
  const std::vector<FileOption> files = file_options(given);
  const std::string& device = given.device;
  bool numbered = device.substr(0, 5) == "cuda:" && device.size() > 5 && device.size() < 10 &&
                  device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "auto" && device != "cpu" && device != "cuda" && device != "emulate" && !numbered)
    return fmt::format("--device {}: expected auto, cpu, cuda, cuda:N or emulate", device);
  if (given.lr && !(std::isfinite(static_cast<float>(*given.lr)) && *given.lr >= 0))
    return "--lr: expected a number of at least 0";
  if (given.init_only && !given.eval.empty())
    return "--init-only launches nothing: --eval does not go with it";
  if (given.only_evaluates()) {
    const std::pair<const char*, bool> others[] = {
        {"--verify", given.verify},
        {"--epochs", given.epochs.has_value()},
        {"--updates", given.updates.has_value()},
        {"--launches", given.launches.has_value()},
        {"--lr", given.lr.has_value()},
        {"--no-shuffle", given.no_shuffle},
        {"--eval-every", given.eval_every > 0},
        {"--patience", given.patience.has_value()},
        {"--save", !given.save.empty()},
        {"--save-best", !given.save_best.empty()},
        {"--dump-grads", !given.dump_grads.empty()},
        {"--tensorboard", !given.tensorboard.empty()},
        {"--checkpoint-every", given.checkpoint_every.has_value()}};
    for (const auto& [name, present] : others)
      if (present) return fmt::format("--eval without --data evaluates once: {} does not go with it", name);
    if (!given.checkpoint.empty() && !given.resume)
      return "--eval without --data evaluates once: --checkpoint goes with it only to --resume from";
  }
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
                                                   {"--eval", !given.eval.empty()}};
    std::string_view wrong;
    for (const auto& [name, present] : others)
      if (present) wrong = name;
    for (const FileOption& each : files)
      if (each.use != FileUse::reads && each.given()) wrong = each.option;
    if (!wrong.empty())
      return fmt::format("--verify chooses its own launches and writes nothing: {} does not go with it",
                         wrong);
  }
  if (!given.init_only && given.data.empty() && given.eval.empty())
    return "--data is required (or --eval alone, or --init-only)";
  if (given.init_only && !(given.checkpoint.empty() && given.tensorboard.empty()))
    return "--init-only launches nothing: --checkpoint and --tensorboard do not go with it";
  if (given.checkpoint.empty() && (given.resume || given.checkpoint_every))
    return fmt::format("{} needs --checkpoint", given.resume ? "--resume" : "--checkpoint-every");
  if (std::string wrong = wrong_outputs(files); !wrong.empty()) return wrong;
  const std::pair<const char*, bool> of_evaluations[] = {{"--eval-every", given.eval_every > 0},
                                                         {"--save-best", !given.save_best.empty()},
                                                         {"--patience", given.patience.has_value()}};
  for (const auto& [name, present] : of_evaluations)
    if (present && given.eval.empty()) return fmt::format("{} needs --eval", name);
  if (given.best != "loss" && given.save_best.empty() && !given.patience)
    return "--best needs --save-best or --patience";
  return "";
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// A number of decimal digits from `low` to `high`. The option parser's own reading takes 010 for 8, and for a
// number past the largest one the largest.
CLI::Validator whole_number(int64_t low, int64_t high = kMost) {
  return {[low, high](std::string& text) -> std::string {
            int64_t value = 0;
            const char *begin = text.data() + text.starts_with('+'), *const end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(begin, end, value);
            if (error == std::errc{} && rest == end && value >= low && value <= high)
              return text = fmt::format("{}", value), "";
            return fmt::format("\"{}\" is not a whole number from {} to {}", text, low, high);
          },
          ""};
}

void add_options(CLI::App& app, Arguments& to) {
  app.add_option("ARTIFACT", to.artifact, "what gaccc wrote (step.ptx)")->type_name("")->required();
  app.add_option("--data", to.data,
                 "training data: mnist:DIR[,split=S], idx:, npy:, npz:, csv:, tokens:F.bin, text:F, "
                 "synthetic:digits|tokens; ,limit=N")
      ->type_name("SPEC");
  app.add_option("--eval", to.eval, "data evaluated after every epoch and at the end")->type_name("SPEC");
  app.add_option("--device", to.device,
                 "auto, cpu, cuda[:N] or emulate; auto: the first GPU that can, else the CPU")
      ->type_name("NAME");
  app.add_option("--epochs", to.epochs,
                 "stop after N epochs; default: the model's, unless another limit is given")
      ->transform(whole_number(0))
      ->type_name("N");
  app.add_option("--updates", to.updates, "stop after N updates")->transform(whole_number(0))->type_name("N");
  app.add_option("--launches", to.launches, "stop after N launches")
      ->transform(whole_number(0))
      ->type_name("N");
  app.add_option("--load", to.load, "parameters to begin with (safetensors)")->type_name("FILE");
  app.add_option("--save", to.save, "write the parameters at the end (safetensors, f32)")->type_name("FILE");
  app.add_option("--log", to.log, "write one JSON object a line")->type_name("FILE");
  app.add_option("--eval-every", to.eval_every, "evaluate after every N updates, too")
      ->transform(whole_number(1))
      ->type_name("N");
  app.add_option("--save-best", to.save_best, "write the parameters of the best evaluation so far")
      ->type_name("FILE");
  app.add_option("--best", to.best, "which is the best: loss (default) or a metric of the model")
      ->type_name("NAME");
  app.add_option("--patience", to.patience, "stop after N evaluations in a row without a better one")
      ->transform(whole_number(1))
      ->type_name("N");
  app.add_flag("--no-shuffle", to.no_shuffle, "take the samples in file order");
  app.add_option("--seed", to.seed, "replaces model.seed")->transform(whole_number(0))->type_name("N");
  app.add_option("--lr", to.lr, "replaces optimizer.lr")->type_name("X");
  app.add_option("--threads", to.threads, "on a CPU; default: all cores")
      ->transform(whole_number(1, 4096))
      ->type_name("N");
  app.add_flag("--init-only", to.init_only, "initialise (and --save), launch nothing");
  app.add_option("--dump-grads", to.dump_grads,
                 "write the mean gradient of the last window (safetensors, f32)")
      ->type_name("FILE");
  app.add_flag("--quiet", to.quiet, "show no progress");
  app.add_option("--checkpoint", to.checkpoint,
                 "folder for the full state of the run, written after every epoch, at the end and on Ctrl-C")
      ->type_name("FOLDER");
  app.add_option("--checkpoint-every", to.checkpoint_every,
                 "write it after every N updates instead of epochs")
      ->transform(whole_number(1))
      ->type_name("N");
  app.add_flag("--resume", to.resume,
               "go on, bit for bit, from the checkpoint in that folder, if there is one");
  app.add_option("--tensorboard", to.tensorboard, "write the log's figures for TensorBoard into this folder")
      ->type_name("FOLDER");
  app.add_option("--gemm", to.gemm, "on a GPU: auto, cublas or builtin")
      ->check(CLI::IsMember({"auto", "cublas", "builtin"}));
  app.add_option("--tune-gemm", to.tune_gemm,
                 "on a GPU: measure cuBLASLt's algorithms for every matrix product and keep the fastest ones "
                 "in FILE, which later runs read")
      ->type_name("FILE");
  app.add_option("--profile", to.profile,
                 "measure every launch, and write a Chrome trace of them (launches then run one by one)")
      ->type_name("FILE");
  app.add_flag("--verify", to.verify, "self-test of the artifact on this data; trains and writes nothing");
  app.set_version_flag("--version",
                       fmt::format("gacc-exec {} (artifact format {})", GACC_VERSION, kArtifactVersion));
}

}  // namespace

bool parse_arguments(int argc, char** argv, Arguments& to, std::string& wrong) {
  CLI::App app("Trains with a step compiled by gaccc.", "gacc-exec");
  add_options(app, to);
  wrong.clear();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    if (app.exit(error, std::cout, text) != 0) wrong = text.str();
    return false;
  }
  if (const std::string text = wrong_command(to); !text.empty())
    wrong = fmt::format("gacc-exec: error: {}\n", text);
  return wrong.empty();
}

}  // namespace gacc
