#include "tools/exec_arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ir/schema/optimizer.h"
#include "ir/schema/rate_schedule.h"
#include "runtime/atomic_file.h"
#include "runtime/data/spec.h"
#include "runtime/store/checkpoint.h"
#include "runtime/tell/log.h"
#include "runtime/weights/adapters.h"

namespace gacc {

namespace {

// ---- what may be written for a value

OptionForm any(std::string type) { return {std::move(type), std::nullopt, {}}; }

OptionForm count(int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) {
  return {"N", whole_number(low, high), {}};
}

// A finite f32 that is not negative.
OptionForm number() {
  const auto check = [](const std::string& text) -> std::string {
    const auto value = number_of<double>(text);
    const auto used = static_cast<float>(value.value_or(-1));
    if (value == 0.0 || (used > 0 && std::isfinite(used))) return "";
    return fmt::format("\"{}\" is neither 0 nor a number from 1.5e-45 to 3.4e38", text);
  };
  return {"X", CLI::Validator(check, ""), {}};
}

// A share of one, which is not zero.
OptionForm share() {
  const auto check = [](const std::string& text) -> std::string {
    const double value = number_of<double>(text).value_or(0);
    return value > 0 && value <= 1 ? "" : fmt::format("\"{}\" is not a number above 0, up to 1", text);
  };
  return {"X", CLI::Validator(check, ""), {}};
}

OptionForm words(const std::vector<std::string>& list) { return {"NAME", CLI::IsMember(list), {}}; }

OptionForm device() {
  const auto check = [](const std::string& text) -> std::string {
    const bool numbered = text.starts_with("cuda:") && text.size() > 5 && text.size() < 10 &&
                          text.find_first_not_of("0123456789", 5) == text.npos;
    const bool known = text == "auto" || text == "cpu" || text == "cuda" || text == "emulate";
    return known || numbered ? "" : fmt::format("{}: expected auto, cpu, cuda, cuda:N or emulate", text);
  };
  return {"auto|cpu|cuda[:N]|emulate", CLI::Validator(check, ""), {}};
}

// ---- files

std::vector<std::string> the_file(const std::string& path) { return {path}; }
// A folder is named as one, without the slash that says so.
std::vector<std::string> the_saved(const std::string& path) {
  return {path.substr(0, std::max<size_t>(path.find_last_not_of('/') + 1, path.empty() ? 0 : 1))};
}
std::vector<std::string> the_source(const std::string& path) { return {source_of(path)}; }
std::vector<std::string> the_events(const std::string& folder) {
  return {folder.empty() ? "" : folder + "/events.out.tfevents"};
}
std::vector<std::string> the_adapter(const std::string& path) {
  const AdapterFiles files = adapter_files(path);
  return {files.tensors, files.configuration};
}

using Endings = std::vector<std::string_view>;
using FilesOf = std::vector<std::string> (*)(const std::string&);

OptionForm path(std::string type, OptionFiles files) {
  return {std::move(type), std::nullopt, std::move(files)};
}
OptionFiles reads(FilesOf of) { return {FileUse::reads, of, "", {}}; }
OptionFiles writes(FilesOf of, Endings endings = {}, std::string_view in_place_of = "") {
  return {FileUse::writes, of, in_place_of, std::move(endings)};
}
OptionFiles updates(FilesOf of) { return {FileUse::updates, of, "", {}}; }

// ---- modes

// Says what a run does, in the order of Mode.
constexpr std::string_view kDoes[] = {"--data trains",
                                      "--eval without --data evaluates once",
                                      "--init-only launches nothing",
                                      "--predict writes the model's outputs",
                                      "--generate goes on with a text",
                                      "--verify chooses its own launches and writes nothing"};
std::string_view what_it_does(Mode mode) { return kDoes[static_cast<size_t>(mode)]; }

// ---- values

bool is_empty(const OptionTarget& target) {
  return std::visit(
      []<class T>(const T* value) {
        if constexpr (std::is_same_v<T, std::string>)
          return value->empty();
        else if constexpr (std::is_arithmetic_v<T>)
          return *value == T();
        else
          return !value->has_value();
      },
      target);
}

std::string value_text(const OptionTarget& target) {
  if (is_empty(target)) return "not given";
  return std::visit(
      []<class T>(const T* value) {
        if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>)
          return fmt::format("{}", *value);
        else
          return fmt::format("{}", **value);
      },
      target);
}

std::vector<FileOption> file_options(Arguments& given) {
  std::vector<FileOption> options;
  for (const OptionRow& row : option_table(given))
    if (row.form.files.use)
      options.push_back({row.name, *row.form.files.use,
                         row.form.files.of(*std::get<std::string*>(row.target)), row.form.files.in_place_of,
                         row.form.files.of == the_saved});
  return options;
}

// ---- what the option parser cannot see

// Says whether the option is given. A flag may be switched off, as --quiet=false.
bool is_given(const CLI::App& app, std::string_view name) {
  const CLI::Option& option = *app.get_option(std::string(name));
  return option.count() > 0 && (option.get_items_expected_max() > 0 || option.as<bool>());
}

// Returns what is wrong with the files that the command line names, or "".
std::string wrong_files(Arguments& given) {
  const std::vector<FileOption> files = file_options(given);
  for (const FileOption& each : files)
    if (each.use != FileUse::reads && std::ranges::find(each.files, "-") != each.files.end())
      return fmt::format("{} -: standard output has the results; write ./- for a file of that name",
                         each.option);
  if (std::string wrong = wrong_outputs(files); !wrong.empty()) return wrong;
  for (const OptionRow& row : option_table(given))
    if (row.writes())
      if (std::string wrong =
              wrong_ending(row.name, *std::get<std::string*>(row.target), row.form.files.endings);
          !wrong.empty())
        return wrong;
  return "";
}

// Returns which option does not stand in the run's mode, or "".
std::string wrong_mode(const CLI::App& app, Arguments& given) {
  const Mode mode = given.mode();
  for (const OptionRow& row : option_table(given)) {
    if (row.modes.has(mode) || !is_given(app, row.name)) continue;
    if (mode == Mode::train) return fmt::format("{} needs --generate", row.name);
    return fmt::format("{}: {} does not go with it", what_it_does(mode), row.name);
  }
  return "";
}

// Returns what a run that trains nothing lacks to have trained parameters, or "".
std::string wrong_parameters(const Arguments& given) {
  if (!given.asks() && given.mode() != Mode::evaluate) return "";
  const std::string_view what = what_it_does(given.mode());
  const bool loads = !given.load.empty() || !given.load_adapter.empty(), has_run = !given.checkpoint.empty();
  if (has_run && !given.resume)
    return fmt::format("{}: --checkpoint goes with it only to --resume from", what);
  if (loads && has_run)
    return fmt::format("{}: --load and --resume both give it the parameters; take one of them", what);
  if (given.load.empty() && !has_run)
    return fmt::format("{}: --load FILE, or --checkpoint FOLDER --resume, gives it the trained parameters",
                       what);
  return "";
}

// Returns which option lacks another one, or "".
std::string wrong_needs(const CLI::App& app, Arguments& given) {
  for (const OptionRow& row : option_table(given)) {
    const auto& needs = row.needs;
    if (!needs.empty() && is_given(app, row.name) &&
        std::ranges::none_of(needs, [&](std::string_view name) { return is_given(app, name); }))
      return fmt::format("{} needs {}", row.name, fmt::join(needs, " or "));
  }
  if (!given.save_best.empty() && !given.save_best_adapter.empty())
    return "--save-best and --save-best-adapter: take one of them; the parameters have the adapters, too";
  if (given.trains() && given.data.empty())
    return "--data is required (or --eval alone, --generate, or --init-only)";
  return "";
}

std::string wrong_command(const CLI::App& app, Arguments& given) {
  if (std::string wrong = wrong_files(given); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_mode(app, given); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_parameters(given); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_needs(app, given); !wrong.empty()) return wrong;
  if (!given.prompts.empty() && is_given(app, "--prompt"))
    return "--prompt and --prompts both say what the text begins with; take one of them";
  if (!given.tune_gemm.empty() && given.gemm == "builtin")
    return "--tune-gemm chooses among cuBLAS's algorithms: --gemm builtin does not go with it";
  if (given.artifact == "-" && given.ranks.value_or(1) > 1)
    return "--ranks: every rank reads the artifact, and standard input can be read once: name a file";
  return "";
}

constexpr std::string_view kExamples = R"(Examples:
    gacc-exec step.ptx --data mnist:data --eval mnist:data,split=test --save w.safetensors
    gacc-exec step.ptx --data csv:a.csv,label=y,split=train --eval csv:a.csv,label=y,split=test
    gacc-exec step.ptx --data SPEC --checkpoint run --resume     goes on where the last run ended
    gacc-exec step.ptx --eval SPEC --load w.safetensors          evaluates, trains nothing
    gacc-exec step.ptx --data SPEC --load w.safetensors --predict out.csv
    gacc-exec step.ptx --load w.safetensors --generate 500 --prompt "ROMEO:" --temperature 0.8

SPEC:
{}    each with ,limit=N for the first N samples; docs/data.md

Exit status:
    0 done   1 a file, the data or the device is wrong   2 the command line is wrong
    3 a bug in gacc   130 interrupted
)";

void add_options(CLI::App& app, Arguments& to) {
  for (const OptionRow& row : option_table(to)) {
    const std::string name(row.name), help(row.help);
    CLI::Option* const option = std::visit(
        [&]<class T>(T* value) {
          if constexpr (std::is_same_v<T, bool>)
            return app.add_flag(name, *value, help);
          else
            return app.add_option(name, *value, help)->type_name(row.form.type);
        },
        row.target);
    if (row.form.check) option->transform(*row.form.check);
    if (row.group.empty())
      option->required();
    else
      option->group(std::string(row.group));
  }
  app.add_flag_callback(
         "--list-data", [] { throw CLI::CallForVersion(sources_markdown(), 0); },
         "print the table of what SPEC may be, and end")
      ->group("Data");
  app.set_version_flag("--version",
                       fmt::format("gacc-exec {} (artifact format {})", GACC_VERSION, kArtifactVersion));
  app.footer(fmt::format(kExamples, spec_forms()));
}

// Returns what other programs call otherwise, what belongs to the compiler, and what the model file says.
Elsewhere elsewhere() {
  constexpr std::string_view kBatch =
      "the artifact has its batch; compile it with gaccc MODEL --set train.micro_batch=N";
  constexpr std::string_view kCompiler = "it is an option of gaccc, which makes the artifact";
  Elsewhere places;
  const auto add = [&](std::string option, std::string_view place) {
    places.emplace_back(std::move(option), place);
  };
  for (const char* option : {"--batch-size", "--batch_size", "--batch", "--micro-batch"}) add(option, kBatch);
  for (const char* option : {"--set", "--memory", "--plan", "--report", "--target"}) add(option, kCompiler);
  for (const char* option : {"-o", "--output"}) add(option, "--save FILE writes the parameters");

  const auto add_key = [&](std::string option, std::string_view table, std::string_view key) {
    const std::string place =
        fmt::format("the model file says it; compile with gaccc MODEL --set {}.{}=VALUE", table, key);
    add("--" + option, place);
    std::ranges::replace(option, '_', '-');
    add("--" + option, place);
  };
  const auto add_keys = [&](std::string_view table, const std::vector<Key>& keys) {
    for (const Key& key : keys) add_key(std::string(key.name), table, key.name);
  };
  for (const auto& [table, key] : {std::pair("precision", "compute"),
                                   {"recompute", "policy"},
                                   {"optimizer", "type"},
                                   {"schedule", "type"},
                                   {"loss", "type"},
                                   {"launch", "mode"}})
    add_key(table, table, key);
#define GACC_SETTING(table, name, type, fallback) add_key(#name, #table, #name);
#include "ir/schema/settings.def"
  for (const ir::Optimizer* optimizer : ir::all_optimizers()) add_keys("optimizer", optimizer->schema.keys);
  for (const TypeSchema* schedule : ir::all_rate_schedules()) add_keys("schedule", schedule->keys);
  return places;
}

}  // namespace

Mode Arguments::mode() const {
  if (!predict.empty()) return Mode::predict;
  if (generate) return Mode::generate;
  if (verify) return Mode::verify;
  if (init_only) return Mode::init_only;
  return data.empty() && !eval.empty() ? Mode::evaluate : Mode::train;
}

std::vector<OptionRow> option_table(Arguments& to) {
  using enum Mode;
  using enum AmongRanks;
  const Modes always = {train, evaluate, init_only, predict, generate, verify};
  const Modes starts = {train, init_only}, gives_parameters = {train, init_only, evaluate, predict, generate};
  const Endings parameters = {".safetensors"}, models = {".safetensors", ".gguf"};
  const OptionForm flag = any("");
  const OptionFiles state = to.resume ? updates(checkpoint_files) : writes(checkpoint_files);
  // clang-format off
  return {
      {"", "ARTIFACT", &to.artifact, path("", reads(the_source)),
       "what gaccc wrote (step.ptx), or - for standard input", compared, {}, always},

      {"Data", "--data", &to.data, path("SPEC", reads(data_files)), "training data", compared, {},
       {train, init_only, predict, verify}},
      {"Data", "--eval", &to.eval, path("SPEC", reads(data_files)),
       "data evaluated after every epoch and at the end;\nwithout --data: evaluates once and ends",
       compared, {}, {train, evaluate}},
      {"Data", "--no-shuffle", &to.no_shuffle, flag, "take the samples in file order",
       compared, {}, {train, init_only, verify}},

      {"Run", "--epochs", &to.train.epochs, count(0),
       "stop after N epochs; default: the model's,\nunless another limit is given", same, {}, starts},
      {"Run", "--updates", &to.train.updates, count(0), "stop after N updates", same, {}, starts},
      {"Run", "--launches", &to.train.launches, count(0), "stop after N launches", same, {}, starts},
      {"Run", "--pause-at", &to.train.pause_at, count(0),
       "end after N updates, in the middle of the run: its other\nlimits say how long it is", same, {}, starts},
      {"Run", "--eval-every", &to.train.eval_every, count(1), "evaluate after every N updates, too",
       same, {"--eval"}, {train}},
      {"Run", "--patience", &to.train.patience, count(1),
       "stop after N evaluations in a row without a better one", same, {"--eval"}, {train}},
      {"Run", "--best", &to.train.best, any("NAME"), "which is better: by loss (default) or a metric of the model",
       same, {"--save-best", "--save-best-adapter", "--patience"}, {train}},
      {"Run", "--seed", &to.seed, count(0), "replaces model.seed; also of --generate", compared, {}, always},
      {"Run", "--lr", &to.lr, number(), "replaces optimizer.lr", compared, {}, {train, init_only, verify}},
      {"Run", "--init-only", &to.init_only, flag, "initialise (and --save), launch nothing", same, {}, {init_only}},
      {"Run", "--recheck", &to.recheck, count(1),
       "make every N-th launch and every N-th update twice, and\ncompare all bits that they leave", same, {}, {train}},
      {"Run", "--verify", &to.verify, flag, "self-test of the artifact on this data; trains and writes nothing",
       same, {"--data"}, {verify}},

      {"Predictions", "--predict", &to.predict, path("FILE", writes(the_file, {".npy", ".csv"})),
       "write the outputs for every sample of --data, in file\norder (npy, f32; FILE.csv: a table; - is standard "
       "output);\ntrains nothing", same, {"--data"}, {predict}},
      {"Predictions", "--generate", &to.generate, count(0),
       "print N tokens that follow the prompt; models of tokens", same, {}, {generate}},
      {"Predictions", "--prompt", &to.text.prompt, any("TEXT"),
       "what they follow; default: a newline. Of a vocabulary\nabove 256: numbers with spaces between them (words: "
       "python3\n-m gacc.generate)", own, {}, {generate}},
      {"Predictions", "--prompts", &to.prompts, path("FILE", reads(the_file)),
       "a prompt a line; prints a line for each, with \\n for a newline", own, {}, {generate}},
      {"Predictions", "--stop", &to.text.stop, any("TEXT"),
       "end before this text; of a vocabulary above 256: before\nthis number", own, {}, {generate}},
      {"Predictions", "--temperature", &to.text.temperature, number(),
       "divides the logits; default 1; 0: the most likely token", own, {}, {generate}},
      {"Predictions", "--top-k", &to.text.top_k, count(1), "choose among the N most likely tokens",
       own, {}, {generate}},
      {"Predictions", "--top-p", &to.text.top_p, share(),
       "choose among the fewest tokens whose probabilities make X", own, {}, {generate}},

      {"Parameters", "--load", &to.load, path("FILE", reads(the_file)),
       "parameters to begin with: safetensors, a GGUF, an index of\nshards, or a folder that has one",
       compared, {}, always},
      {"Parameters", "--save", &to.save, path("FILE", writes(the_saved, models, "--load")),
       "write the parameters at the end (safetensors); FOLDER/: with\nconfig.json and the tokenizer's files of the "
       "folder of --load;\nFILE.gguf: with all that --like has", given, {}, starts},
      {"Parameters", "--like", &to.like, path("BASE.gguf", reads(the_file)),
       "the GGUF whose metadata, names and types of tensors those\nget that --save writes; the base of an adapter",
       own, {"--save", "--save-adapter"}, starts},
      {"Parameters", "--check", &to.check, count(1),
       "compare what the written files compute with the run's\nparameters, on the first N samples of --eval or --data; "
       "exit 1\nbeyond 1e-6, in half precision 2^-7, of the largest output",
       same, {"--save", "--save-adapter"}, {train}},
      {"Parameters", "--save-as", &to.save_as, words({"published"}),
       "names and layout of --save and --save-best: those of [load]\nin the model file, as in every FOLDER/",
       own, {"--save", "--save-best"}, starts},
      {"Parameters", "--save-type", &to.save_type, words({"f32", "bf16", "f16"}),
       "of the numbers that --save and --save-best write: f32\n(default), bf16 or f16",
       own, {"--save", "--save-best"}, starts},
      {"Parameters", "--merge", &to.merge, flag,
       "add the adapters (lora) to the weights that --save and\n--save-best write",
       own, {"--save", "--save-best"}, starts},
      {"Parameters", "--load-adapter", &to.load_adapter, path("FOLDER", reads(the_adapter)),
       "adapters to begin with, as PEFT writes them; also a file\nof their tensors, NAME.safetensors, or llama.cpp's, "
       "NAME.gguf", compared, {}, gives_parameters},
      {"Parameters", "--save-adapter", &to.save_adapter, path("FOLDER", writes(the_adapter, models, "--load-adapter")),
       "write the adapters at the end, as PEFT reads them; NAME.gguf:\nas llama.cpp does", given, {}, starts},
      {"Parameters", "--save-best", &to.save_best, path("FILE", writes(the_saved, parameters)),
       "write the parameters of the best evaluation so far; also a\nFOLDER/, as --save", given, {"--eval"}, {train}},
      {"Parameters", "--save-best-adapter", &to.save_best_adapter, path("FOLDER", writes(the_adapter, parameters)),
       "write the adapters of the best evaluation so far", given, {"--eval"}, {train}},
      {"Parameters", "--dump-grads", &to.dump_grads, path("FILE", writes(the_file, parameters)),
       "write the mean gradient of the last window (safetensors, f32)", given, {}, {train}},

      {"Checkpoints", "--checkpoint", &to.checkpoint, path("FOLDER", state),
       "folder for the full state of the run, written after every\nepoch, at the end and on Ctrl-C", given, {},
       {train, evaluate, predict, generate}},
      {"Checkpoints", "--checkpoint-every", &to.train.checkpoint_every, count(1),
       "write it after every N updates instead of epochs", same, {"--checkpoint"}, {train}},
      {"Checkpoints", "--resume", &to.resume, flag,
       "go on, bit for bit, from the checkpoint in that folder,\nif there is one",
       compared, {"--checkpoint"}, {train, evaluate, predict, generate}},

      {"Output", "--log", &to.log, path("FILE", writes(log_files)), "write one JSON object a line",
       own, {}, {train, init_only, evaluate}},
      {"Output", "--log-hash", &to.log_hash, flag,
       "with each update's line a SHA-256 of the weights, for\nscripts/compare-logs", same, {"--log"}, {train}},
      {"Output", "--tensorboard", &to.tensorboard, path("FOLDER", writes(the_events)),
       "write the log's figures for TensorBoard into this folder", own, {}, {train}},
      {"Output", "--profile", &to.profile, path("FILE", writes(the_file)),
       "measure every launch, and write a Chrome trace of them\n(launches then run one by one)", own, {}, {train}},
      {"Output", "--quiet", &to.quiet, flag, "show results alone, and no progress", own, {}, always},

      {"Device", "--device", &to.device, device(), "auto (default): the first GPU that can, else the CPU",
       compared, {}, always},
      {"Device", "--threads", &to.threads, count(1, 4096), "on a CPU; default: all cores", own, {}, always},
      {"Device", "--gemm", &to.gemm, words({"auto", "cublas", "builtin"}), "on a GPU: auto, cublas or builtin",
       same, {}, always},
      {"Device", "--tune-gemm", &to.tune_gemm, path("FILE", updates(the_file)),
       "on a GPU: measure cuBLASLt's algorithms for every matrix\nproduct and keep the fastest ones in "
       "FILE, which later\nruns read", given, {}, gives_parameters},

      {"Ranks", "--ranks", &to.ranks, count(1),
       "train with N processes on this machine, started by mpirun;\ndocs/ranks.md", own, {}, always},
      {"Ranks", "--rank-timeout", &to.rank_timeout, count(1),
       "seconds without a sign of life of another rank that are\nborne; default 60", own, {}, always},
  };
  // clang-format on
}

Facts facts_of_options(const Arguments& arguments) {
  Arguments copy = arguments;  // the table is over members that may change
  Facts facts;
  for (const OptionRow& row : option_table(copy)) {
    if (row.ranks == AmongRanks::same) facts.emplace_back(row.name, value_text(row.target));
    if (row.ranks == AmongRanks::given)
      facts.emplace_back(row.name, is_empty(row.target) ? "not given" : "given");
  }
  return facts;
}

Arguments without_outputs(Arguments arguments) {
  for (const OptionRow& row :
       option_table(arguments))  // all ranks read the checkpoint, and keep a part of it
    if (row.writes() && row.name != "--checkpoint") std::get<std::string*>(row.target)->clear();
  arguments.quiet = true;
  return arguments;
}

std::optional<int> parse_arguments(int argc, char** argv, Arguments& to) {
  to.command.assign(argv, argv + argc);
  CLI::App app("Trains with a step compiled by gaccc.", "gacc-exec");
  add_options(app, to);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv, elsewhere())) return ended;
  to.predict = target_of(to.predict);
  const std::string wrong = wrong_command(app, to);
  return wrong.empty() ? std::nullopt : std::optional(fail(kWrongCommand, wrong));
}

}  // namespace gacc
