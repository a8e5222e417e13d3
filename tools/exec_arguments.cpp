#include "tools/exec_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <vector>

#include "runtime/artifact.h"
#include "runtime/data/spec.h"
#include "runtime/store/checkpoint.h"
#include "runtime/tell/log.h"
#include "runtime/weights/adapters.h"
#include "tools/command_line.h"

namespace gacc {

namespace {

std::vector<std::string> files_of_adapter(const std::string& path) {
  const AdapterFiles files = adapter_files(path);
  return {files.tensors, files.configuration};
}

// All options that read or write files.
std::vector<FileOption> file_options(const Arguments& given) {
  using enum FileUse;
  const std::string events = given.tensorboard.empty() ? "" : given.tensorboard + "/events.out.tfevents";
  return {{"ARTIFACT", reads, {source_of(given.artifact)}},
          {"--data", reads, data_files(given.data)},
          {"--eval", reads, data_files(given.eval)},
          {"--load", reads, {given.load}},
          {"--save", writes, {given.save}, "--load"},  // training in place
          {"--load-adapter", reads, files_of_adapter(given.load_adapter)},
          {"--save-adapter", writes, files_of_adapter(given.save_adapter), "--load-adapter"},
          {"--save-best", writes, {given.save_best}},
          {"--predict", writes, {given.predict}},
          {"--log", writes, log_files(given.log)},
          {"--dump-grads", writes, {given.dump_grads}},
          {"--tune-gemm", updates, {given.tune_gemm}},
          {"--profile", writes, {given.profile}},
          {"--checkpoint", given.resume ? updates : writes, checkpoint_files(given.checkpoint)},
          {"--tensorboard", writes, {events}}};
}

// The first of these options that is given, or null. A flag may be switched off, as --quiet=false.
const char* first_given(const CLI::App& app, const std::vector<const char*>& names) {
  for (const char* name : names) {
    const CLI::Option& option = *app.get_option(name);
    if (option.count() > 0 && (option.get_items_expected_max() > 0 || option.as<bool>())) return name;
  }
  return nullptr;
}

// What does not go with evaluating once, predicting and generating; and what these need.
std::string wrong_question(const CLI::App& app, const Arguments& given) {
  if (!given.asks()) {
    if (const char* name = first_given(app, {"--prompt", "--temperature", "--top-k"}); name != nullptr)
      return fmt::format("{} needs --generate", name);
    if (!given.only_evaluates()) return "";
  }
  const bool predicts = !given.predict.empty(), generates = given.generate.has_value();
  const char* what = predicts    ? "--predict writes the model's outputs"
                     : generates ? "--generate goes on with a text"
                                 : "--eval without --data evaluates once";
  std::vector<const char*> others;
  if (predicts) others = {"--generate", "--prompt", "--temperature", "--top-k"};
  if (generates && !predicts) others = {"--data"};
  if (given.asks()) others.insert(others.end(), {"--eval", "--log", "--profile"});
  others.insert(others.end(), {"--init-only", "--verify", "--epochs", "--updates", "--launches", "--lr",
                               "--no-shuffle", "--eval-every", "--patience", "--save", "--save-best",
                               "--save-adapter", "--dump-grads", "--tensorboard", "--checkpoint-every"});
  if (const char* name = first_given(app, others); name != nullptr)
    return fmt::format("{}: {} does not go with it", what, name);
  if (!given.checkpoint.empty() && !given.resume)
    return fmt::format("{}: --checkpoint goes with it only to --resume from", what);
  if (!(given.load.empty() && given.load_adapter.empty()) && !given.checkpoint.empty())
    return fmt::format("{}: --load and --resume both give it the parameters; take one of them", what);
  if (!given.asks()) return "";
  if (given.load.empty() && given.checkpoint.empty())
    return fmt::format("{}: --load FILE, or --checkpoint FOLDER --resume, gives it the trained parameters",
                       what);
  if (predicts && given.data.empty()) return "--predict needs --data";
  if (!(std::isfinite(given.text.temperature) && given.text.temperature >= 0))
    return "--temperature: expected a number of at least 0";
  return "";
}

// What the option parser cannot see; empty when the command line makes sense.
std::string wrong_command(const CLI::App& app, const Arguments& given) {
  const std::vector<FileOption> files = file_options(given);
  const std::string& device = given.device;
  const bool numbered = device.substr(0, 5) == "cuda:" && device.size() > 5 && device.size() < 10 &&
                        device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "auto" && device != "cpu" && device != "cuda" && device != "emulate" && !numbered)
    return fmt::format("--device {}: expected auto, cpu, cuda, cuda:N or emulate", device);
  if (given.lr && !(std::isfinite(static_cast<float>(*given.lr)) && *given.lr >= 0))
    return "--lr: expected a number of at least 0";
  if (given.init_only && !given.eval.empty())
    return "--init-only launches nothing: --eval does not go with it";
  for (const FileOption& each : files)
    if (each.use != FileUse::reads && std::ranges::find(each.files, "-") != each.files.end())
      return fmt::format("{} -: standard output has the results; write ./- for a file of that name",
                         each.option);
  if (std::string wrong = wrong_outputs(files); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_question(app, given); !wrong.empty()) return wrong;
  if (!given.tune_gemm.empty() && given.gemm == "builtin")
    return "--tune-gemm chooses among cuBLAS's algorithms: --gemm builtin does not go with it";
  if (const char* name = first_given(app, {"--profile", "--dump-grads"}); given.init_only && name != nullptr)
    return fmt::format("--init-only launches nothing: {} does not go with it", name);
  if (given.verify) {
    const char* name =
        first_given(app, {"--eval", "--load-adapter", "--launches", "--updates", "--epochs", "--init-only"});
    std::string_view wrong = name != nullptr ? name : "";
    for (const FileOption& each : files)
      if (each.use != FileUse::reads && each.given()) wrong = each.option;
    if (!wrong.empty())
      return fmt::format("--verify chooses its own launches and writes nothing: {} does not go with it",
                         wrong);
  }
  if (given.trains() && given.data.empty())
    return "--data is required (or --eval alone, --generate, or --init-only)";
  if (given.init_only && !(given.checkpoint.empty() && given.tensorboard.empty()))
    return "--init-only launches nothing: --checkpoint and --tensorboard do not go with it";
  if (given.checkpoint.empty() && (given.resume || given.train.checkpoint_every))
    return fmt::format("{} needs --checkpoint", given.resume ? "--resume" : "--checkpoint-every");
  if (const char* name = first_given(app, {"--eval-every", "--save-best", "--patience"});
      name != nullptr && given.eval.empty())
    return fmt::format("{} needs --eval", name);
  if (!given.save_as.empty() && given.save.empty()) return "--save-as needs --save";
  if (given.merge && given.save.empty()) return "--merge needs --save";
  if (given.train.best != "loss" && given.save_best.empty() && !given.train.patience)
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

constexpr std::string_view kExamples = R"(Examples:
    gacc-exec step.ptx --data mnist:data --eval mnist:data,split=test --save w.safetensors
    gacc-exec step.ptx --data csv:a.csv,label=y,split=train --eval csv:a.csv,label=y,split=test
    gacc-exec step.ptx --data SPEC --checkpoint run --resume     goes on where the last run ended
    gacc-exec step.ptx --eval SPEC --load w.safetensors          evaluates, trains nothing
    gacc-exec step.ptx --data SPEC --load w.safetensors --predict out.npy
    gacc-exec step.ptx --load w.safetensors --generate 500 --prompt "ROMEO:" --temperature 0.8

SPEC:
{}    each with ,limit=N for the first N samples; docs/data.md

Exit status:
    0 done   1 a file, the data or the device is wrong   2 the command line is wrong
    3 a bug in gacc   130 interrupted
)";

void add_options(CLI::App& app, Arguments& to) {
  app.add_option("ARTIFACT", to.artifact, "what gaccc wrote (step.ptx), or - for standard input")
      ->type_name("")
      ->required();
  std::string group;
  const auto value = [&](const char* name, auto& target, const char* type, const char* text) {
    return app.add_option(name, target, text)->type_name(type)->group(group);
  };
  const auto count = [&](const char* name, auto& target, int64_t least, const char* text) {
    return value(name, target, "N", text)->transform(whole_number(least));
  };
  const auto flag = [&](const char* name, bool& target, const char* text) {
    return app.add_flag(name, target, text)->group(group);
  };
  group = "Data";
  value("--data", to.data, "SPEC", "training data");
  value("--eval", to.eval, "SPEC",
        "data evaluated after every epoch and at the end;\nwithout --data: evaluates once and ends");
  flag("--no-shuffle", to.no_shuffle, "take the samples in file order");

  group = "Run";
  count("--epochs", to.train.epochs, 0,
        "stop after N epochs; default: the model's,\nunless another limit is given");
  count("--updates", to.train.updates, 0, "stop after N updates");
  count("--launches", to.train.launches, 0, "stop after N launches");
  count("--eval-every", to.train.eval_every, 1, "evaluate after every N updates, too");
  count("--patience", to.train.patience, 1, "stop after N evaluations in a row without a better one");
  value("--best", to.train.best, "NAME", "which is better: by loss (default) or a metric of the model");
  count("--seed", to.seed, 0, "replaces model.seed; also of --generate");
  value("--lr", to.lr, "X", "replaces optimizer.lr");
  flag("--init-only", to.init_only, "initialise (and --save), launch nothing");
  flag("--verify", to.verify, "self-test of the artifact on this data; trains and writes nothing");

  group = "Predictions";
  value("--predict", to.predict, "FILE",
        "write the outputs for every sample of --data, in file\norder (npy, f32; - is standard output); "
        "trains nothing");
  count("--generate", to.generate, 0, "print N tokens that follow the prompt; models of tokens");
  value("--prompt", to.text.prompt, "TEXT",
        "what they follow; default: a newline. Of a vocabulary\nabove 256: numbers with spaces between them");
  value("--temperature", to.text.temperature, "X", "divides the logits; default 1; 0: the most likely token");
  count("--top-k", to.text.top_k, 1, "choose among the N most likely tokens");

  group = "Parameters";
  value("--load", to.load, "FILE",
        "parameters to begin with: safetensors, an index of shards,\nor a folder that has one");
  value("--save", to.save, "FILE", "write the parameters at the end (safetensors, f32)");
  value("--save-as", to.save_as, "NAME", "names and layout of --save: those of [load] in the model file")
      ->check(CLI::IsMember({"published"}));
  flag("--merge", to.merge, "add the adapters (lora) to the weights that --save writes");
  value("--load-adapter", to.load_adapter, "FOLDER",
        "adapters to begin with, as PEFT writes them; also a file\nof their tensors, NAME.safetensors");
  value("--save-adapter", to.save_adapter, "FOLDER", "write the adapters at the end, as PEFT reads them");
  value("--save-best", to.save_best, "FILE", "write the parameters of the best evaluation so far");
  value("--dump-grads", to.dump_grads, "FILE",
        "write the mean gradient of the last window (safetensors, f32)");

  group = "Checkpoints";
  value("--checkpoint", to.checkpoint, "FOLDER",
        "folder for the full state of the run, written after every\nepoch, at the end and on Ctrl-C");
  count("--checkpoint-every", to.train.checkpoint_every, 1,
        "write it after every N updates instead of epochs");
  flag("--resume", to.resume, "go on, bit for bit, from the checkpoint in that folder,\nif there is one");

  group = "Output";
  value("--log", to.log, "FILE", "write one JSON object a line");
  value("--tensorboard", to.tensorboard, "FOLDER",
        "write the log's figures for TensorBoard into this folder");
  value("--profile", to.profile, "FILE",
        "measure every launch, and write a Chrome trace of them\n(launches then run one by one)");
  flag("--quiet", to.quiet, "show results alone, and no progress");

  group = "Device";
  value("--device", to.device, "auto|cpu|cuda[:N]|emulate",
        "auto (default): the first GPU that can, else the CPU");
  value("--threads", to.threads, "N", "on a CPU; default: all cores")->transform(whole_number(1, 4096));
  value("--gemm", to.gemm, "NAME", "on a GPU: auto, cublas or builtin")
      ->check(CLI::IsMember({"auto", "cublas", "builtin"}));
  value("--tune-gemm", to.tune_gemm, "FILE",
        "on a GPU: measure cuBLASLt's algorithms for every matrix\nproduct and keep the fastest ones in "
        "FILE, which later\nruns read");

  group = "Ranks";
  count("--ranks", to.ranks, 1, "train with N processes on this machine, started by mpirun;\ndocs/ranks.md");
  count("--rank-timeout", to.rank_timeout, 1,
        "seconds without a sign of life of another rank that are\nborne; default 60");
  app.add_flag_callback(
         "--list-data",
         [] {
           std::cout << sources_markdown();
           throw CLI::Success();
         },
         "print the table of what SPEC may be, and end")
      ->group("Data");
  app.set_version_flag("--version",
                       fmt::format("gacc-exec {} (artifact format {})", GACC_VERSION, kArtifactVersion));
  app.footer(fmt::format(kExamples, spec_forms()));
}

// What belongs to the compiler, and what other programs call otherwise.
Elsewhere elsewhere() {
  constexpr std::string_view kBatch =
      "the artifact has its batch; compile it with gaccc MODEL --set train.micro_batch=N";
  constexpr std::string_view kCompiler = "it is an option of gaccc, which makes the artifact";
  return {{"--batch-size", kBatch},
          {"--batch_size", kBatch},
          {"--batch", kBatch},
          {"--micro-batch", kBatch},
          {"--set", kCompiler},
          {"--memory", kCompiler},
          {"--plan", kCompiler},
          {"--report", kCompiler},
          {"--target", kCompiler},
          {"-o", "--save FILE writes the parameters"},
          {"--output", "--save FILE writes the parameters"}};
}

}  // namespace

std::optional<int> parse_arguments(int argc, char** argv, Arguments& to) {
  CLI::App app("Trains with a step compiled by gaccc.", "gacc-exec");
  add_options(app, to);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv, elsewhere())) return ended;
  to.predict = target_of(to.predict);
  const std::string wrong = wrong_command(app, to);
  return wrong.empty() ? std::nullopt : std::optional(fail(kWrongCommand, wrong));
}

}  // namespace gacc
