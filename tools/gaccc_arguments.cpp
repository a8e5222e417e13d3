#include "tools/gaccc_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "compiler/published_source.h"
#include "ir/text/size_text.h"
#include "runtime/atomic_file.h"
#include "tools/fits.h"
#include "tools/key_advice.h"

namespace gacc {

namespace {

constexpr std::pair<std::string_view, const char*> kExtensions[] = {
    {"ptx", ".ptx"}, {"ir", ".gir"}, {"llvm", ".ll"}, {"graph", ".txt"}, {"toml", ".toml"}, {"svg", ".svg"}};

const char* extension_of(std::string_view emit) {
  return std::ranges::find(kExtensions, emit, [](const auto& each) { return each.first; })->second;
}

// The file that is read of MODEL: a folder stands for the config.json in it.
std::vector<std::string> the_model(const std::string& path) {
  std::error_code ignored;  // reading the file says what is wrong with it
  const bool folder = std::filesystem::is_directory(path, ignored);
  return {source_of(folder ? path + "/config.json" : path)};
}

OptionForm size_a_second() {
  const auto check = [](const std::string& text) -> std::string {
    CompilerArguments given;
    given.link = text;
    return given.link_speed() ? "" : fmt::format("{}: expected a size a second, as in 25GB/s", text);
  };
  return {"SIZE/s", CLI::Validator(check, ""), {}};
}

OptionForm cards() {
  OptionForm form = any("[SIZES]");
  form.unsaid = kUsualCards;
  return form;
}

OptionForm named(OptionForm form, std::string_view type) {
  form.type = type;
  return form;
}

constexpr const char* kExamples = R"(Examples:
    gaccc model.toml -o step.ptx            gacc-exec step.ptx trains with it
    gaccc model.toml --plan                 memory, launches, FLOPs; no artifact
    gaccc model.toml --memory 512MiB        the step fits into that much memory
    gaccc model.toml --set train.accumulate=8
    gaccc SmolLM2-135M --lora 16            a published model, by its folder
    gaccc SmolLM2-135M --fits               which cards it trains on
    gaccc --example mnist_cnn >model.toml   a model file to begin with

Exit status:
    0 done   1 the model or a file is wrong   2 the command line is wrong
    3 a bug in gacc
)";

// Says where an option is that this program does not have: in the executor, or in the model file.
std::string elsewhere(const std::string& option) {
  constexpr std::string_view of_gacc_exec[] = {"--data",     "--eval",       "--load",        "--save",
                                               "--log",      "--predict",    "--device",      "--resume",
                                               "--generate", "--checkpoint", "--verify",      "--threads",
                                               "--merge",    "--updates",    "--save-adapter"};
  if (std::ranges::find(of_gacc_exec, option) != std::end(of_gacc_exec))
    return "it is an option of gacc-exec, which trains with the artifact";
  const std::string set = set_of_option(option);
  return set.empty() ? "" : fmt::format("write {}", set);
}

std::string wrong_command(const CLI::App& app, const CompilerArguments& given, const OptionRows& rows) {
  if (std::string wrong = wrong_excludes(app, rows); !wrong.empty()) return wrong;
  if (std::string wrong = wrong_needs(app, rows); !wrong.empty()) return wrong;
  if (given.model.empty() && !given.prints()) return "MODEL is required";
  if (given.fits && !parse_cards(*given.fits))
    return fmt::format("--fits {}: expected sizes of cards in GiB, as in 4,8,24", *given.fits);
  if (given.model == "-" && given.writes_output() && given.output.empty())
    return "a model from standard input needs -o";
  return "";
}

}  // namespace

std::string CompilerArguments::output_path() const {
  if (!output.empty()) return output;
  const char* extension = extension_of(emit);
  if (is_published(model)) return published_name(model) + extension;
  return std::filesystem::path(model).filename().replace_extension(extension).string();
}

std::optional<double> CompilerArguments::link_speed() const {
  constexpr std::string_view kASecond = "/s";
  if (!link.ends_with(kASecond)) return std::nullopt;
  const std::optional<int64_t> size = ir::parse_bytes(link.substr(0, link.size() - kASecond.size()));
  if (!size || *size <= 0) return std::nullopt;
  return static_cast<double>(*size);
}

OptionRows option_table(CompilerArguments& to) {
  const OptionForm flag = any("");
  const std::vector<std::string> forms = {"ptx", "ir", "llvm", "graph", "svg", "toml"};
  const Excluded on_paper{{"-o -", "--report -"}, "both would share standard output"};
  const Excluded not_planned{{"--stop-after", "--emit graph"}, "it needs all passes"};
  const Excluded alone{{"--emit toml"},
                       "that writes the model file alone; compile it with the other options"};
  const Excluded no_model{{"MODEL", "--plan", "--summary", "--kernels", "--fits", "-o", "--report", "--set"},
                          "it needs no MODEL, and prints one text"};
  // clang-format off
  return {
      {"Options", "MODEL", &to.model, path("", reads(the_model)),
       "the model file (TOML, or IR in phase model), or - for standard\ninput; or the folder of a published model, or "
       "its config.json", {}, {}},

      {"Output", "-o", &to.output, path("FILE", writes(the_target)),
       "the file to write; - is standard output;\ndefault: MODEL with .ptx in the current folder", {}, {}},
      {"Output", "--emit", &to.emit, words(forms),
       "what to write: ptx (the artifact), ir, llvm, graph, svg (a picture of\nthe memory over the kernels), or toml "
       "(the model file that a folder\nis read as)", {}, {}},
      {"Output", "--target", &to.target, any("sm_NN"),
       "GPU to emit for: sm_75, sm_80 (default), sm_86, sm_89,\nsm_90, sm_90a, ...", {}, {}},
      {"Output", "--report", &to.report, path("FILE.html", writes(the_target, {".html"})), "a page about the plan",
       {}, {not_planned, alone, {{"-o -"}, "both would share standard output"}}},
      {"Output", "--strict", &to.strict, flag, "warnings are errors", {}, {}},
      {"Output", "--quiet", &to.quiet, flag, "say nothing of how far it is", {}, {}},

      {"Model", "--set", &to.sets, any("KEY=VALUE"),
       "override a value of the model file, as in\n--set train.accumulate=8; repeatable", {}, {}},
      {"Model", "--memory", &to.memory, any("SIZE"), "short for --set memory.budget=\"SIZE\"", {}, {}},
      {"Model", "--host", &to.host, any("SIZE"),
       "short for --set memory.host=\"SIZE\": what may lie in the host's\nmemory, beside --memory (docs/memory.md)",
       {}, {}},
      {"Model", "--launch", &to.launch, any("auto|graph|persistent"), "short for --set launch.mode=MODE", {}, {}},
      {"Model", "--ranks", &to.ranks, any("R|auto"),
       "short for --set train.ranks=R; with --plan: what the\nsums of R ranks cost (docs/ranks.md)", {}, {}},
      {"Model", "--documents", &to.documents, count(1, 1 << 30),
       "short for --set train.documents=N: times are estimated for documents\nof N tokens on average; of a published "
       "model it turns on --pack", {}, {}},
      {"Model", "--lora", &to.lora, named(count(1, 1 << 20), "R"),
       "short for [lora]: adapters of rank R at all products of the\nblocks", {}, {}},

      {"Published models", "--context", &to.context, named(count(1, 1 << 30), "T"),
       "of a published model: tokens of a window; default: 1024, or\nall of its positions where they are fewer",
       {}, {}},
      {"Published models", "--pack", &to.pack, flag,
       "of a published model: windows have several documents, whose\nnumbers are a further input "
       "(docs/fine-tuning.md)", {}, {}},
      {"Published models", "--families", &to.families, any("DIR"),
       "more families of published models (docs/adding-a-family.md)", {}, {}},

      {"Plan", "--plan", &to.plan, flag, "print the plan; no artifact unless -o is given",
       {}, {not_planned, alone, on_paper}},
      {"Plan", "--kernels", &to.kernels, flag,
       "with --plan: what the step runs on a GPU, each kernel\nand product with its estimated time", {"--plan"}, {}},
      {"Plan", "--link", &to.link, size_a_second(),
       "with --plan: what a rank or the host sends in a second, as in 25GB/s", {"--plan"}, {}},
      {"Plan", "--summary", &to.summary, flag, "print a table of the layers; writes no artifact unless -o is given",
       {}, {{{"--json"}, "it is a table"}, alone, on_paper}},
      {"Plan", "--fits", &to.fits, cards(),
       "print which cards the model trains on, wholly and by adapters, and with\nwindows of how many tokens; SIZES in "
       "GiB, default: 4,6,8,12,16,24,40,80",
       {}, {{{"--plan", "--kernels", "--summary", "--emit", "--stop-after", "--print-after", "-o", "--report",
              "--memory", "--link"}, "it is a table of cards and writes nothing else"},
            {{"--ranks auto"}, "it needs a number of ranks"}}},
      {"Plan", "--json", &to.json, flag, "with --plan, --fits or --schema: as JSON",
       {"--plan", "--fits", "--schema"}, {}},

      {"Texts", "--schema", &to.schema, flag, "print what a model file may say (docs/model.md); needs no MODEL",
       {}, {no_model, {{"--example"}, "each prints one text"}}},
      {"Texts", "--markdown", &to.markdown, flag, "with --schema: as the page docs/model.md",
       {"--schema"}, {{{"--json"}, "each is a form of its own"}}},
      {"Texts", "--example", &to.example, any("NAME"), "print an example of a model file; needs no MODEL",
       {}, {no_model}},

      {"Passes", "--print-after", &to.print_after, any("PASS|all"),
       "the IR after that pass, on standard error; repeatable", {}, {}},
      {"Passes", "--stop-after", &to.stop_after, any("PASS"),
       "with --emit ir: stop there; model: before the first pass", {"--emit ir"}, {}},
      {"Passes", "--time-passes", &to.times, flag, "a table of times on standard error", {}, {}},
      {"Passes", "--print-locs", &to.locations, flag, "print the place in the model file of each op", {}, {}},
  };
  // clang-format on
}

std::optional<int> parse_arguments(int argc, char** argv, CompilerArguments& to) {
  CLI::App app{"Compiles a model file to a training step.", "gaccc"};
  const OptionRows rows = option_table(to);
  add_options(app, rows);
  app.set_version_flag("--version", "gaccc " GACC_VERSION);
  app.footer(kExamples);
  if (const std::optional<int> ended = parse_command_line(app, argc, argv, elsewhere)) return ended;
  if (to.fits && to.model.empty() && !parse_cards(*to.fits))
    to.model = std::exchange(to.fits, kUsualCards).value();  // --fits MODEL
  const std::string wrong = wrong_command(app, to, rows);
  if (wrong.empty()) return std::nullopt;
  return fail(kWrongCommand, fmt::format("{}\ngaccc --help lists the options", wrong));
}

std::string wrong_outputs(CompilerArguments given) {
  const OptionRows rows = option_table(given);
  std::vector<FileOption> files = file_options(rows);
  for (FileOption& each : files)
    if (each.option == "-o") each.files = {given.writes_output() ? target_of(given.output_path()) : ""};
  for (const auto& [prints, option] :
       {std::pair(given.plan || given.summary, "--plan"), {given.fits.has_value(), "--fits"}})
    if (prints) files.push_back({option, FileUse::writes, {target_of("-")}});
  if (const std::string wrong = wrong_files(files, rows); !wrong.empty()) return wrong;
  std::vector<std::string_view> endings = {extension_of(given.emit)};
  if (given.emit == "ir" || given.emit == "llvm") endings.push_back(".txt");
  const std::string wrong = wrong_ending("-o", given.output, endings);
  return wrong.empty() || !given.plan ? wrong
                                      : wrong + "; the plan goes to standard output: > " + given.output;
}

}  // namespace gacc
