#include "tools/compiler_arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "codegen/device_code.h"
#include "compiler/compile_step.h"
#include "ir/size_text.h"
#include "passes/cost_model.h"
#include "passes/pipeline.h"
#include "tools/command_line.h"
#include "tools/file_uses.h"

namespace gacc {

namespace {

// The word as a TOML string, also where TOML would read a number: `--memory 1` lacks a unit, not quotes.
std::string toml_string(std::string_view word) {
  std::string text = "\"";
  for (const char c : word) (text += c == '"' || c == '\\' ? "\\" : "") += c;
  return text + '"';
}

// All options that read or write files.
std::vector<FileOption> file_options(const CompilerArguments& given) {
  using enum FileUse;
  return {{"MODEL", reads, {source_of(given.model)}},
          {"--costs", reads, {passes::has_cost_model(given.costs) ? "" : given.costs}},
          {"-o", writes, {given.writes_output() ? target_of(output_path(given)) : ""}},
          {"--report", writes, {target_of(given.report)}},
          {"--plan", writes, {given.plan || given.summary ? target_of("-") : ""}}};
}

}  // namespace

std::optional<int> parse_arguments(int argc, char** argv, CompilerArguments& to) {
  CLI::App app{"Compiles a model file to a training step.", "gaccc"};
  app.set_version_flag("--version", "gaccc " GACC_VERSION);
  app.footer(R"(Examples:
    gaccc model.toml -o step.ptx                        then: gacc-exec step.ptx --data SPEC
    gaccc model.toml --plan                             memory, launches and FLOPs; writes nothing
    gaccc model.toml --memory 512MiB -o step.ptx        the step fits into that much memory
    gaccc model.toml --set train.accumulate=8 -o step.ptx

Exit status:
    0 done   1 the model or a file is wrong   2 the command line is wrong   3 a bug in gacc
)");
  app.add_option("MODEL", to.model, "the model file (TOML), or - for standard input")->type_name("");
  app.add_option("-o", to.output,
                 "the file to write; - is standard output;\ndefault: MODEL with .ptx in the current folder")
      ->type_name("FILE");
  app.add_option("--emit", to.emit, "what to write: ptx (the artifact), ir, llvm or graph")
      ->check(CLI::IsMember({"ptx", "ir", "llvm", "graph"}));
  app.add_option("--target", to.target,
                 "GPU to emit for: sm_75, sm_80 (default), sm_86, sm_89,\nsm_90, sm_90a, ...")
      ->type_name("sm_NN");
  app.add_option("--set", to.sets,
                 "override a value of the model file, as in\n--set train.accumulate=8; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--memory", to.memory, "short for --set memory.budget=\"SIZE\"")->type_name("SIZE");
  app.add_option("--ranks", to.ranks,
                 "short for --set train.ranks=R; with --plan: what the\nsums of R ranks cost (docs/ranks.md)")
      ->type_name("R|auto");
  app.add_option("--link", to.link, "with --plan: what a rank sends in a second, as in 25GB/s")
      ->type_name("SIZE/s");
  app.add_option("--costs", to.costs,
                 "what kernels cost: those of a target or of the cpu,\nor measured ones (docs/memory.md)")
      ->type_name("NAME|FILE");
  app.add_option("--launch", to.launch, "short for --set launch.mode=MODE")
      ->type_name("auto|graph|persistent");
  app.add_flag("--plan", to.plan, "print the plan; no artifact unless -o is given");
  app.add_flag("--kernels", to.kernels,
               "with --plan: what the step runs on a GPU, each kernel\nand product with its estimated time");
  app.add_flag("--summary", to.summary, "print a table of the layers; writes no artifact unless -o is given");
  app.add_flag("--schema", to.schema, "print what a model file may say (docs/model.md); needs no MODEL");
  app.add_flag("--json", to.json, "with --plan or --schema: as JSON");
  app.add_flag("--markdown", to.markdown, "with --schema: as the page docs/model.md");
  app.add_option("--report", to.report, "a page about the plan")->type_name("FILE.html");
  app.add_option("--print-after", to.print_after, "the IR after that pass, on standard error; repeatable")
      ->type_name("PASS|all")
      ->allow_extra_args(false);
  app.add_option("--stop-after", to.stop_after, "with --emit ir: stop there; model: before the first pass")
      ->type_name("PASS");
  app.add_flag("--time-passes", to.times, "a table of times on standard error");
  app.add_flag("--print-locs", to.locations, "print the place in the model file of each op");
  const Elsewhere elsewhere = {{"--data", "it is an option of gacc-exec, which trains with the artifact"},
                               {"--batch-size", "write --set train.micro_batch=N"},
                               {"--lr", "write --set optimizer.lr=X"},
                               {"--epochs", "write --set train.epochs=N"}};
  const std::optional<int> ended = parse_command_line(app, argc, argv, elsewhere);
  if (ended || to.model.empty() == to.schema) return ended;
  return fail(kWrongCommand, fmt::format("{}\ngaccc --help lists the options",
                                         to.schema ? "--schema needs no MODEL" : "MODEL is required"));
}

std::string wrong_command(const CompilerArguments& arguments, std::vector<Override>& overrides) {
  if (arguments.json && !arguments.plan) return "--json goes with --plan or --schema";
  if (arguments.markdown) return "--markdown goes with --schema";
  if (arguments.kernels && !arguments.plan) return "--kernels goes with --plan";
  if (!arguments.link.empty() && !arguments.plan) return "--link goes with --plan";
  if (!arguments.link.empty() && !arguments.link_speed())
    return fmt::format("--link {}: expected a size a second, as in 25GB/s", arguments.link);
  if (!arguments.stop_after.empty() && arguments.emit != "ir") return "--stop-after goes with --emit ir";
  if (!arguments.stop_after.empty() && arguments.plan)
    return "--plan needs all passes: it excludes --stop-after";
  if (!arguments.report.empty() && !arguments.stop_after.empty())
    return "--report needs all passes: it excludes --stop-after";
  if (!arguments.report.empty() && arguments.emit == "graph")
    return "--report needs all passes: it excludes --emit graph";
  if (arguments.report == "-" && (arguments.plan || arguments.output == "-"))
    return "--report - would share standard output";
  if (arguments.plan && arguments.emit == "graph") return "--plan needs all passes: it excludes --emit graph";
  if (arguments.plan && arguments.output == "-") return "--plan and -o - would share standard output";
  if (arguments.summary && arguments.json) return "--summary is a table: it excludes --json";
  if (arguments.summary && (arguments.output == "-" || arguments.report == "-"))
    return "--summary would share standard output";
  if (arguments.model == "-" && arguments.writes_output() && arguments.output.empty())
    return "a model from standard input needs -o";
  for (const std::string& set : arguments.sets) {
    const std::optional<Override> given = parse_override(set);
    if (!given) return fmt::format("--set {}: expected KEY=VALUE", set);
    overrides.push_back(*given);
  }
  if (const std::string wrong = wrong_outputs(file_options(arguments)); !wrong.empty()) return wrong;
  if (!arguments.memory.empty()) overrides.push_back({"memory.budget", toml_string(arguments.memory)});
  if (!arguments.ranks.empty()) {
    const bool number = arguments.ranks.find_first_not_of("0123456789") == std::string::npos;
    overrides.push_back({"train.ranks", number ? arguments.ranks : toml_string(arguments.ranks)});
  }
  if (!arguments.launch.empty()) overrides.push_back({"launch.mode", toml_string(arguments.launch)});
  passes::PipelineOptions pipeline;
  pipeline.print_after = arguments.print_after;
  pipeline.stop_after = arguments.stop_after;
  if (const std::string unknown = passes::unknown_pass(pipeline); !unknown.empty()) return unknown;
  Diag diag("--target", "");
  if (!codegen::check_target(arguments.target, diag)) return diag.reports().front().text;
  return "";
}

std::optional<double> CompilerArguments::link_speed() const {
  constexpr std::string_view kASecond = "/s";
  if (!link.ends_with(kASecond)) return std::nullopt;
  const std::optional<int64_t> size = ir::parse_bytes(link.substr(0, link.size() - kASecond.size()));
  if (!size || *size <= 0) return std::nullopt;
  return static_cast<double>(*size);
}

std::string output_path(const CompilerArguments& arguments) {
  if (!arguments.output.empty()) return arguments.output;
  const char* extension = arguments.emit == "ir"      ? ".gir"
                          : arguments.emit == "llvm"  ? ".ll"
                          : arguments.emit == "graph" ? ".txt"
                                                      : ".ptx";
  return std::filesystem::path(arguments.model).filename().replace_extension(extension).string();
}

}  // namespace gacc
