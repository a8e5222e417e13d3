// gaccc: the compiler. Reads a model file, runs the passes, and writes the artifact (or the IR, or the device
// LLVM IR), the plan, or both. CONTRACT section 2 fixes its options and exit codes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codegen/artifact_plan.h"
#include "codegen/nvptx.h"
#include "codegen/plan_writer.h"
#include "frontend/frontend.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "passes/plan_memory.h"
#include "passes/recompute.h"
#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "tools/choose_batch.h"
#include "tools/read_costs.h"
#include "tools/report/page.h"
#include "tools/report/timeline.h"

namespace {

using namespace gacc;

enum Exit { kDone = 0, kWrongFile = 1, kWrongCommand = 2, kBug = 3 };

constexpr int64_t kModelLimit = int64_t{64} << 20;  // bytes of a model file

struct Arguments {
  std::string model, output, emit = "ptx", target = "sm_80", memory, launch, costs, report, stop_after;
  std::vector<std::string> sets, print_after;
  bool plan = false, json = false, times = false, locations = false;
};

void to_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

int fail(Exit exit, std::string_view text) {
  to_stderr(fmt::format("gaccc: {}\n", text));
  return exit;
}

int bug(std::string_view text) {
  if (text.substr(0, 14) != "internal error") to_stderr("internal error: ");
  to_stderr(fmt::format("{}\n", text));
  if (text.find("report") == std::string_view::npos)
    to_stderr("This is a bug in gacc; please report it with the model file and the command line.\n");
  return kBug;
}

// A table of times that follows the pass manager's own.
class Clock {
 public:
  explicit Clock(bool on) : on_(on) {}
  void phase(std::string_view name) {
    const auto now = std::chrono::steady_clock::now();
    if (on_)
      text_ += fmt::format("{:<12} {:>13.3f}\n", name,
                           std::chrono::duration<double, std::milli>(now - last_).count());
    last_ = now;
  }
  ~Clock() { to_stderr(text_); }

 private:
  bool on_;
  std::string text_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string output_path(const Arguments& arguments) {
  if (!arguments.output.empty()) return arguments.output;
  const char* extension = arguments.emit == "ir"      ? ".gir"
                          : arguments.emit == "llvm"  ? ".ll"
                          : arguments.emit == "graph" ? ".txt"
                                                      : ".ptx";
  return std::filesystem::path(arguments.model).filename().replace_extension(extension).string();
}

// What no model file can make right; "" when the command line is sound.
std::string wrong_command(const Arguments& arguments, std::vector<Override>& overrides) {
  if (arguments.json && !arguments.plan) return "--json goes with --plan";
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
  if (arguments.model == "-" && arguments.output.empty() && !arguments.plan)
    return "a model from standard input needs -o";
  for (const std::string& set : arguments.sets) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos || equals == 0) return fmt::format("--set {}: expected KEY=VALUE", set);
    overrides.push_back({set.substr(0, equals), set.substr(equals + 1)});
  }
  std::error_code none;
  if (std::filesystem::equivalent(output_path(arguments), arguments.model, none))
    return "the output would replace the model file";
  if (std::filesystem::equivalent(arguments.report, arguments.model, none))
    return "the report would replace the model file";
  if (!arguments.report.empty() && arguments.report == output_path(arguments))
    return "-o and --report name the same file";
  if (!arguments.memory.empty()) overrides.push_back({"memory.budget", arguments.memory});
  if (!arguments.launch.empty()) overrides.push_back({"launch.mode", arguments.launch});
  passes::PipelineOptions pipeline;
  pipeline.print_after = arguments.print_after;
  pipeline.stop_after = arguments.stop_after;
  if (const std::string unknown = passes::unknown_pass(pipeline); !unknown.empty()) return unknown;
  Diag diag("--target", "");
  if (!codegen::check_target(arguments.target, diag)) return diag.reports().front().text;
  return "";
}

Status read_model(const std::string& path, std::string& text) {
  if (path != "-") return read_file(path, text, kModelLimit);
  char chunk[1 << 16];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, stdin)) {
    text.append(chunk, count);
    if (static_cast<int64_t>(text.size()) > kModelLimit)
      return Status::error("standard input is larger than a model file can be");
  }
  return {};
}

struct Output {
  std::string path;  // "-": standard output
  std::string text;
};

// All of the files or, when one cannot be written, none of them.
Status write_outputs(const std::vector<Output>& outputs) {
  std::vector<std::unique_ptr<AtomicFile>> files;
  for (const Output& output : outputs) {
    if (output.path == "-") continue;
    files.push_back(std::make_unique<AtomicFile>());
    Status status = files.back()->open(output.path);
    if (status) status = files.back()->write(output.text);
    if (!status) return status;
  }
  for (const Output& output : outputs) {
    if (output.path != "-") continue;
    if (std::fwrite(output.text.data(), 1, output.text.size(), stdout) != output.text.size() ||
        std::fflush(stdout) != 0)
      return Status::error("cannot write standard output: {}", std::strerror(errno));
  }
  for (const auto& file : files)
    if (Status status = file->commit(); !status) return status;
  return {};
}

PlanFacts facts_of(const ir::Module& module, const Arguments& arguments) {
  PlanFacts facts;
  facts.target = arguments.target;
  for (const passes::Pass& pass : passes::all_passes()) facts.passes.emplace_back(pass.name);
  const passes::MemoryReport report = passes::memory_report(module);
  facts.bytes = {.weights = report.weights,
                 .half_weights = report.half_weights,
                 .gradients = report.gradients,
                 .optimizer = report.optimizer,
                 .activations = report.activations,
                 .workspace = report.workspace,
                 .inputs = report.inputs,
                 .peak = report.peak,
                 .lower_bound = report.lower_bound};
  return facts;
}

PlanRecompute plan_recompute(const passes::RecomputeReport& report) {
  return {report.policy, report.recomputed_ops, report.extra_flops, report.overhead,
          report.overhead_lower_bound};
}

// Micro-batch, accumulation and recompute under the budget: prints the choice and compiles the model again
// with it. An exit code when nothing fits.
std::optional<int> choose(const std::string& text, const std::string& file, std::vector<Override>& overrides,
                          const passes::Options& options, std::optional<ir::Module>& module, Diag& diag) {
  std::string refused;  // why a candidate cannot be compiled at all
  const CompileToFused compile = [&](const std::vector<Override>& more) -> std::optional<ir::Module> {
    std::vector<Override> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    Diag candidate_diag(file, text);
    std::optional<ir::Module> candidate = compile_model(text, file, all, candidate_diag);
    passes::PipelineOptions pipeline;
    pipeline.stop_after = "fuse";
    pipeline.options = options;
    if (candidate && passes::run_pipeline(*candidate, pipeline, candidate_diag)) return candidate;
    if (refused.empty()) refused = candidate_diag.render();
    return std::nullopt;
  };
  const BatchChoice choice = choose_batch(*module, compile, options);
  if (!choice.done) {
    if (choice.problem.empty()) {
      to_stderr(refused);
      return kWrongFile;
    }
    diag.error(Kind::does_not_fit, {}, "{}", choice.problem);
    to_stderr(diag.render());
    return kWrongFile;
  }
  to_stderr(choice.why);
  if (choice.overrides.empty()) return std::nullopt;
  overrides.insert(overrides.end(), choice.overrides.begin(), choice.overrides.end());
  module = compile_model(text, file, overrides, diag);
  if (module && !diag.failed()) return std::nullopt;
  to_stderr(diag.render());
  return kWrongFile;
}

int compile(const Arguments& arguments) {
  std::vector<Override> overrides;
  if (const std::string wrong = wrong_command(arguments, overrides); !wrong.empty())
    return fail(kWrongCommand, wrong);

  Clock clock(arguments.times);
  std::string text;
  if (Status status = read_model(arguments.model, text); !status) return fail(kWrongFile, status.text());
  const std::string file = arguments.model == "-" ? "<stdin>" : arguments.model;
  Diag diag(file, text);
  std::optional<ir::Module> module = compile_model(text, file, overrides, diag);
  if (!module || diag.failed()) {
    to_stderr(diag.render());
    return diag.failed() ? kWrongFile : bug("the frontend gave up without a reason");
  }
  clock.phase("frontend");

  passes::PipelineOptions pipeline;
  const bool named = passes::has_cost_model(arguments.costs);
  pipeline.options.costs = passes::cost_model(named ? arguments.costs : arguments.target);
  if (!arguments.costs.empty() && !named) {
    if (Status status = read_costs(arguments.costs, pipeline.options.costs); !status)
      return fail(kWrongFile, status.text());
  }
  const passes::CostModel& costs = pipeline.options.costs;
  if (has_choice(*module)) {
    if (const auto exit = choose(text, file, overrides, pipeline.options, module, diag)) return *exit;
    clock.phase("choice");
  }
  pipeline.print_after = arguments.print_after;
  pipeline.stop_after = arguments.emit == "graph" ? "fuse" : arguments.stop_after;
  pipeline.time_passes = arguments.times;
  pipeline.print_locations = arguments.locations;
  pipeline.sink = to_stderr;
  if (const passes::PipelineResult result = passes::run_pipeline(*module, pipeline, diag); !result) {
    if (!result.internal_error.empty()) return bug(result.internal_error);
    const bool too_small = diag.reports().back().kind == Kind::does_not_fit;
    if (Diag better(file, text); too_small) {  // what would fit
      if (const auto exit = choose(text, file, overrides, pipeline.options, module, better)) return *exit;
    }
    to_stderr(diag.render());
    return kWrongFile;
  }
  clock.phase("passes");

  std::string output;
  const bool write = !arguments.plan || !arguments.output.empty();
  if (arguments.emit == "ir") {
    output = ir::print(*module, {.locations = arguments.locations});
  } else if (arguments.emit == "graph") {
    output = passes::print_graph(passes::step_graph(*module, costs));
  }
  Plan plan;
  const bool report = !arguments.report.empty();
  if (arguments.plan || report || arguments.emit == "ptx")
    plan = write_plan(*module, facts_of(*module, arguments));
  if (write && arguments.emit != "ir" && arguments.emit != "graph") {
    const std::optional<codegen::DeviceCode> code = codegen::emit_nvptx(*module, arguments.target, diag);
    if (!code) return bug(diag.failed() ? diag.render() : "code generation gave up without a reason");
    clock.phase("codegen");
    if (arguments.emit == "llvm") {
      output = code->llvm_ir;
    } else {
      std::string problem;
      if (!add_programs(*module, *code, plan, problem)) return bug(problem);
      Artifact artifact{plan, ir::print(*module), code->ptx, text};
      for (const Override& each : overrides) artifact.overrides.push_back(each.key + "=" + each.value);
      output = write_artifact(artifact);
    }
  }
  std::vector<Output> outputs;
  if (write) outputs.push_back({output_path(arguments), std::move(output)});
  passes::RecomputeReport recompute;
  if (report || arguments.plan) recompute = passes::recompute_report(*module, costs);
  if (report) {
    // A point of the curve is a plan of its own: fewer of a large step.
    const int points = plan.kernels_per_launch < 400 ? 12 : plan.kernels_per_launch < 800 ? 6 : 3;
    outputs.push_back(
        {arguments.report, report::report_page(*module, plan, recompute,
                                               passes::trade_off(*module, pipeline.options, points))});
    clock.phase("report");
  }
  if (arguments.plan) {
    const int64_t chunks = module->setting("loss.chunks", int64_t{1});
    outputs.push_back({"-", arguments.json ? plan_json(plan, plan_recompute(recompute), chunks).dump(2) + "\n"
                                           : plan_text(plan, plan_recompute(recompute), chunks) +
                                                 report::timeline_text(report::memory_map(*module))});
  }
  if (Status status = write_outputs(outputs); !status) return fail(kWrongFile, status.text());
  clock.phase("write");
  return kDone;
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app{"gaccc: compiles a model file to a training step", "gaccc"};
  app.set_version_flag("--version", "gaccc " GACC_VERSION);
  app.add_option("MODEL", arguments.model, "the model file (TOML), or - for standard input")->required();
  app.add_option("-o", arguments.output,
                 "the file to write; - is standard output; default: MODEL with .ptx in the current folder")
      ->type_name("FILE");
  app.add_option("--emit", arguments.emit, "what to write: ptx (the artifact), ir, llvm or graph")
      ->check(CLI::IsMember({"ptx", "ir", "llvm", "graph"}));
  app.add_option("--target", arguments.target,
                 "GPU to emit for: sm_75, sm_80 (default), sm_86, sm_89, sm_90, sm_90a, ...")
      ->type_name("sm_NN");
  app.add_option("--set", arguments.sets,
                 "override a value of the model file: --set train.accumulate=8; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_option("--memory", arguments.memory, "short for --set memory.budget=\"SIZE\"")->type_name("SIZE");
  app.add_option("--costs", arguments.costs,
                 "what kernels cost: those of a target or of the cpu, or measured ones (docs/memory.md)")
      ->type_name("NAME|FILE");
  app.add_option("--launch", arguments.launch, "short for --set launch.mode=MODE")->type_name("MODE");
  app.add_flag("--plan", arguments.plan, "print the plan; writes no artifact unless -o is given");
  app.add_flag("--json", arguments.json, "with --plan: as one JSON object");
  app.add_option("--report", arguments.report, "a page about the plan")->type_name("FILE.html");
  app.add_option("--print-after", arguments.print_after,
                 "the IR after that pass, on standard error; repeatable")
      ->type_name("PASS|all")
      ->allow_extra_args(false);
  app.add_option("--stop-after", arguments.stop_after,
                 "with --emit ir: stop there; model: before the first pass")
      ->type_name("PASS");
  app.add_flag("--time-passes", arguments.times, "a table of times on standard error");
  app.add_flag("--print-locs", arguments.locations, "print the place in the model file of each op");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kWrongCommand;
  }
  return compile(arguments);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit of its size is an error like a full disk
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(kWrongFile, "out of memory");
  } catch (const std::exception& error) {
    return bug(error.what());
  }
}
