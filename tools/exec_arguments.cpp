#include "tools/exec_arguments.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/data/spec.h"
#include "runtime/store/checkpoint.h"
#include "runtime/tell/log.h"
#include "runtime/weights/adapters.h"
#include "tools/key_advice.h"

namespace gacc {

namespace {

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

// A folder is named as one, without the slash that says so.
std::vector<std::string> the_saved(const std::string& path) {
  return {path.substr(0, std::max<size_t>(path.find_last_not_of('/') + 1, path.empty() ? 0 : 1))};
}
std::vector<std::string> the_events(const std::string& folder) {
  return {folder.empty() ? "" : folder + "/events.out.tfevents"};
}
std::vector<std::string> the_adapter(const std::string& path) {
  const AdapterFiles files = adapter_files(path);
  return {files.tensors, files.configuration};
}

using Endings = std::vector<std::string_view>;

// Parameters, or a whole folder of a model.
OptionFiles saves(Endings endings, std::string_view in_place_of = "") {
  OptionFiles files = writes(the_saved, std::move(endings), in_place_of);
  files.folder = true;
  return files;
}

// ---- modes

// Says what a run does, in the order of Mode.
constexpr std::string_view kDoes[] = {"--data trains",
                                      "--eval without --data evaluates once",
                                      "--init-only launches nothing",
                                      "--predict writes the model's outputs",
                                      "--generate goes on with a text",
                                      "--verify chooses its own launches and writes nothing"};
std::string_view what_it_does(Mode mode) { return kDoes[static_cast<size_t>(mode)]; }

// ---- what the option parser cannot see

OptionRows rows_of(Arguments& given) {
  OptionRows rows;
  for (ExecRow& row : option_table(given)) rows.push_back(std::move(row.option));
  return rows;
}

// Returns what is wrong with the files that the command line names, or "".
std::string wrong_output(const OptionRows& rows) {
  const std::vector<FileOption> files = file_options(rows);
  for (const FileOption& each : files)
    if (each.use != FileUse::reads && std::ranges::find(each.files, "-") != each.files.end())
      return fmt::format("{} -: standard output has the results; write ./- for a file of that name",
                         each.option);
  return wrong_files(files, rows);
}

// Returns which option does not stand in the run's mode, or "".
std::string wrong_mode(const CLI::App& app, Arguments& given) {
  const Mode mode = given.mode();
  for (const ExecRow& row : option_table(given)) {
    const std::string_view name = row.option.name;
    if (row.modes.has(mode) || !is_given(app, name)) continue;
    if (mode == Mode::train) return fmt::format("{} needs --generate", name);
    const bool predicted = mode == Mode::predict && name == "--eval";
    return fmt::format("{}: {} does not go with it{}", what_it_does(mode), name,
                       predicted ? "; --data SPEC is what they are of" : "");
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

std::string wrong_command(const CLI::App& app, Arguments& given) {
  const OptionRows rows = rows_of(given);
  if (std::string wrong = wrong_output(rows); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_mode(app, given); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_parameters(given); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_needs(app, rows); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_excludes(app, rows); !wrong.empty()) return wrong;
  if (given.init_only && given.check > 0 && given.data.empty())
    return "--check needs --data, whose first samples it compares";
  if (given.trains() && given.data.empty())
    return "--data is required (or --eval alone, --generate, or --init-only, which writes what --load reads)";
  if (given.artifact == "-" && given.ranks.value_or(1) > 1)
    return "--ranks: every rank reads the artifact, and standard input can be read once: name a file";
  return "";
}

constexpr std::string_view kExamples = R"(Examples:
    gacc-exec step.ptx --data mnist:data --eval mnist:data,split=test
    gacc-exec step.ptx --data csv:a.csv,label=y --save w.safetensors
    gacc-exec step.ptx --data SPEC --checkpoint run --resume   goes on
    gacc-exec step.ptx --eval SPEC --load w.safetensors        only evaluates
    gacc-exec step.ptx --data SPEC --load w.safetensors --predict out.csv
    gacc-exec step.ptx --load w.safetensors --generate 500 --prompt "ROMEO:"

SPEC:
{}    each with ,limit=N for the first N samples; docs/data.md says more

Exit status:
    0 done   1 a file, the data or the device is wrong
    2 the command line is wrong   3 a bug in gacc   130 interrupted
)";

void add_all_options(CLI::App& app, Arguments& to) {
  add_options(app, rows_of(to));
  app.add_flag_callback(
         "--list-data", [] { throw CLI::CallForVersion(sources_markdown(), 0); },
         "print the table of what SPEC may be, and end")
      ->group("Data");
  app.set_version_flag("--version",
                       fmt::format("gacc-exec {} (artifact format {})", GACC_VERSION, kArtifactVersion));
  app.footer(fmt::format(kExamples, spec_forms()));
}

// Says where an option is that this program does not have: in the compiler, or in the model file.
std::string elsewhere(const std::string& option) {
  constexpr std::string_view of_gaccc[] = {"--set",    "--memory",  "--plan",     "--report", "--target",
                                           "--emit",   "--summary", "--lora",     "--pack",   "--fits",
                                           "--launch", "--context", "--families", "--strict", "--schema"};
  if (std::ranges::find(of_gaccc, option) != std::end(of_gaccc))
    return "it is an option of gaccc, which makes the artifact";
  if (option == "-o" || option == "--output") return "--save FILE writes the parameters";
  const std::string set = set_of_option(option);
  return set.empty() ? "" : fmt::format("the model file says it; compile with gaccc MODEL {}", set);
}

}  // namespace

Mode Arguments::mode() const {
  if (!predict.empty()) return Mode::predict;
  if (generate) return Mode::generate;
  if (verify) return Mode::verify;
  if (init_only) return Mode::init_only;
  return data.empty() && !eval.empty() ? Mode::evaluate : Mode::train;
}

std::vector<ExecRow> option_table(Arguments& to) {
  using enum Mode;
  using enum AmongRanks;
  const Modes always = {train, evaluate, init_only, predict, generate, verify};
  const Modes starts = {train, init_only}, gives_parameters = {train, init_only, evaluate, predict, generate};
  const Endings parameters = {".safetensors"}, models = {".safetensors", ".gguf"};
  const OptionForm flag = any("");
  const OptionFiles state = to.resume ? updates(checkpoint_files) : writes(checkpoint_files);
  // clang-format off
  return {
      {{"", "ARTIFACT", &to.artifact, path("", reads(the_source)),
       "what gaccc wrote (step.ptx), or - for standard input", {}, {}}, compared, always},

      {{"Data", "--data", &to.data, path("SPEC", reads(data_files)), "training data",
       {}, {}}, compared, {train, init_only, predict, verify}},
      {{"Data", "--eval", &to.eval, path("SPEC", reads(data_files)),
       "data evaluated after every epoch and at the end;\nwithout --data: evaluates once and ends",
       {}, {}}, compared, {train, evaluate}},
      {{"Data", "--no-shuffle", &to.no_shuffle, flag, "take the samples in file order",
       {}, {}}, compared, {train, init_only, verify}},

      {{"Run", "--epochs", &to.train.epochs, count(0),
       "stop after N epochs; default: the model's,\nunless another limit is given", {}, {}}, same, starts},
      {{"Run", "--updates", &to.train.updates, count(0), "stop after N updates", {}, {}}, same, starts},
      {{"Run", "--launches", &to.train.launches, count(0), "stop after N launches", {}, {}}, same, starts},
      {{"Run", "--pause-at", &to.train.pause_at, count(0),
       "end after N updates, in the middle of the run: its other\nlimits say how long it is", {}, {}}, same, starts},
      {{"Run", "--eval-every", &to.train.eval_every, count(1), "evaluate after every N updates, too",
       {"--eval"}, {}}, same, {train}},
      {{"Run", "--patience", &to.train.patience, count(1), "stop after N evaluations in a row without a better one",
       {"--eval"}, {}}, same, {train}},
      {{"Run", "--best", &to.train.best, any("NAME"), "which is better: by loss (default) or a metric of the model",
       {"--save-best", "--save-best-adapter", "--patience"}, {}}, same, {train}},
      {{"Run", "--seed", &to.seed, count(0), "replaces model.seed; also of --generate", {}, {}}, compared, always},
      {{"Run", "--lr", &to.lr, number(), "replaces optimizer.lr", {}, {}}, compared, {train, init_only, verify}},
      {{"Run", "--init-only", &to.init_only, flag, "initialise (and --save), launch nothing",
       {}, {}}, same, {init_only}},
      {{"Run", "--recheck", &to.recheck, count(1),
       "make every N-th launch and every N-th update twice, and\ncompare all bits that they leave",
       {}, {}}, same, {train}},
      {{"Run", "--verify", &to.verify, flag, "self-test of the artifact on this data; trains and writes nothing",
       {"--data"}, {}}, same, {verify}},

      {{"Predictions", "--predict", &to.predict, path("FILE", writes(the_file, {".npy", ".csv"})),
       "write the outputs for every sample of --data, in file\norder (npy, f32; FILE.csv: a table; - is standard "
       "output);\ntrains nothing", {"--data"}, {}}, same, {predict}},
      {{"Predictions", "--generate", &to.generate, count(0), "print N tokens that follow the prompt; models of tokens",
       {}, {}}, same, {generate}},
      {{"Predictions", "--prompt", &to.text.prompt, any("TEXT"),
       "what they follow; default: a newline. Of a vocabulary\nabove 256: numbers with spaces between them (words: "
       "python3\n-m gacc.generate)", {}, {}}, own, {generate}},
      {{"Predictions", "--prompts", &to.prompts, path("FILE", reads(the_file)),
       "a prompt a line; prints a line for each, with \\n for a newline",
       {}, {{{"--prompt"}, "both say what the text begins with; take one of them"}}}, own, {generate}},
      {{"Predictions", "--stop", &to.text.stop, any("TEXT"),
       "end before this text; of a vocabulary above 256: before\nthis number", {}, {}}, own, {generate}},
      {{"Predictions", "--temperature", &to.text.temperature, number(),
       "divides the logits; default 1; 0: the most likely token", {}, {}}, own, {generate}},
      {{"Predictions", "--top-k", &to.text.top_k, count(1), "choose among the N most likely tokens",
       {}, {}}, own, {generate}},
      {{"Predictions", "--top-p", &to.text.top_p, share(), "choose among the fewest tokens whose probabilities make X",
       {}, {}}, own, {generate}},

      {{"Parameters", "--load", &to.load, path("FILE", reads(the_file)),
       "parameters to begin with: safetensors, a GGUF, an index of\nshards, or a folder that has one",
       {}, {}}, compared, always},
      {{"Parameters", "--save", &to.save, path("FILE", saves(models, "--load")),
       "write the parameters at the end (safetensors); FOLDER/: with\nconfig.json and the tokenizer's files of the "
       "folder of --load;\nFILE.gguf: with all that --like has", {}, {}}, given, starts},
      {{"Parameters", "--like", &to.like, path("BASE.gguf", reads(the_file)),
       "the GGUF from which a written GGUF takes its metadata, its\nnames and types of tensors; of an adapter the base",
       {"--save", "--save-adapter"}, {}}, own, starts},
      {{"Parameters", "--check", &to.check, count(1),
       "compare what the written files compute with the run's\nparameters, on the first N samples of --eval or "
       "--data; exit 1\nbeyond 1e-6, in half precision 2^-7, of the largest output",
       {"--save", "--save-adapter"}, {}}, same, starts},
      {{"Parameters", "--save-as", &to.save_as, words({"published"}),
       "--save and --save-best write the tensors as the published model has\nthem: names and layout of [load] in the "
       "model file. FOLDER/ always does",
       {"--save", "--save-best"}, {}}, own, starts},
      {{"Parameters", "--save-type", &to.save_type, words({"f32", "bf16", "f16"}),
       "of the numbers that --save and --save-best write: f32\n(default), bf16 or f16",
       {"--save", "--save-best"}, {}}, own, starts},
      {{"Parameters", "--merge", &to.merge, flag,
       "add the adapters (lora) to the weights that --save and\n--save-best write",
       {"--save", "--save-best"}, {}}, own, starts},
      {{"Parameters", "--load-adapter", &to.load_adapter, path("FOLDER", reads(the_adapter)),
       "adapters to begin with, as PEFT writes them; also a file\nof their tensors, NAME.safetensors, or "
       "llama.cpp's, NAME.gguf", {}, {}}, compared, gives_parameters},
      {{"Parameters", "--save-adapter", &to.save_adapter, path("FOLDER", writes(the_adapter, models, "--load-adapter")),
       "write the adapters at the end, as PEFT reads them; NAME.gguf:\nas llama.cpp does", {}, {}}, given, starts},
      {{"Parameters", "--save-best", &to.save_best, path("FILE", saves(parameters)),
       "write the parameters of the best evaluation so far; also a\nFOLDER/, as --save",
       {"--eval"}, {}}, given, {train}},
      {{"Parameters", "--save-best-adapter", &to.save_best_adapter, path("FOLDER", writes(the_adapter, parameters)),
       "write the adapters of the best evaluation so far",
       {"--eval"}, {{{"--save-best"}, "take one of them; the parameters have the adapters, too"}}}, given, {train}},
      {{"Parameters", "--dump-grads", &to.dump_grads, path("FILE", writes(the_file, parameters)),
       "write the mean gradient of the last window (safetensors, f32)", {}, {}}, given, {train}},

      {{"Checkpoints", "--checkpoint", &to.checkpoint, path("FOLDER", state),
       "folder for the full state of the run, written after every\nepoch, at the end and on Ctrl-C",
       {}, {}}, given, {train, evaluate, predict, generate}},
      {{"Checkpoints", "--checkpoint-every", &to.train.checkpoint_every, count(1),
       "write it after every N updates instead of epochs", {"--checkpoint"}, {}}, same, {train}},
      {{"Checkpoints", "--resume", &to.resume, flag,
       "go on, bit for bit, from the checkpoint in that folder,\nif there is one",
       {"--checkpoint"}, {}}, compared, {train, evaluate, predict, generate}},

      {{"Output", "--log", &to.log, path("FILE", writes(log_files, {".jsonl", ".json", ".ndjson", ".log", ".txt"})),
       "write one JSON object a line",
       {}, {}}, own, {train, init_only, evaluate}},
      {{"Output", "--log-hash", &to.log_hash, flag,
       "with each update's line a SHA-256 of the weights, for\nscripts/compare-logs", {"--log"}, {}}, same, {train}},
      {{"Output", "--tensorboard", &to.tensorboard, path("FOLDER", writes(the_events)),
       "write the log's figures for TensorBoard into this folder", {}, {}}, own, {train}},
      {{"Output", "--profile", &to.profile, path("FILE", writes(the_file)),
       "measure every launch, and write a Chrome trace of them\n(launches then run one by one)", {}, {}}, own, {train}},
      {{"Output", "--quiet", &to.quiet, flag, "show results alone, and no progress", {}, {}}, own, always},

      {{"Device", "--device", &to.device, device(), "auto (default): the first GPU that can, else the CPU",
       {}, {}}, compared, always},
      {{"Device", "--threads", &to.threads, count(1, 4096), "on a CPU; default: all cores", {}, {}}, own, always},
      {{"Device", "--gemm", &to.gemm, words({"auto", "cublas", "builtin"}), "on a GPU: auto, cublas or builtin",
       {}, {}}, same, always},
      {{"Device", "--tune-gemm", &to.tune_gemm, path("FILE", updates(the_file)),
       "on a GPU: measure cuBLASLt's algorithms for every matrix\nproduct and keep the fastest ones in FILE, which "
       "later\nruns read",
       {}, {{{"--gemm builtin"}, "it chooses among cuBLAS's algorithms"}}}, given, gives_parameters},

      {{"Ranks", "--ranks", &to.ranks, count(1),
       "train with N processes on this machine, started by mpirun;\ndocs/ranks.md", {}, {}}, own, always},
      {{"Ranks", "--rank-timeout", &to.rank_timeout, count(1),
       "seconds without a sign of life of another rank that are\nborne; default 60", {}, {}}, own, always},
  };
  // clang-format on
}

Facts facts_of_options(const Arguments& arguments) {
  Arguments copy = arguments;  // the table is over members that may change
  Facts facts;
  for (const auto& [option, ranks, modes] : option_table(copy)) {
    if (ranks == AmongRanks::same) facts.emplace_back(option.name, value_text(option.target));
    if (ranks == AmongRanks::given)
      facts.emplace_back(option.name, is_empty(option.target) ? "not given" : "given");
  }
  return facts;
}

Arguments without_outputs(Arguments arguments) {
  for (const OptionRow& row : rows_of(arguments))  // all ranks read the checkpoint, and keep a part of it
    if (row.writes() && row.name != "--checkpoint") std::get<std::string*>(row.target)->clear();
  arguments.quiet = true;
  return arguments;
}

std::optional<int> parse_arguments(int argc, char** argv, Arguments& to) {
  to.command.assign(argv, argv + argc);
  CLI::App app("Trains with a step compiled by gaccc.", "gacc-exec");
  add_all_options(app, to);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv, elsewhere)) return ended;
  to.predict = target_of(to.predict);
  const std::string wrong = wrong_command(app, to);
  return wrong.empty() ? std::nullopt : std::optional(fail(kWrongCommand, wrong));
}

}  // namespace gacc
