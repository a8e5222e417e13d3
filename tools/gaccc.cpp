// gaccc: the compiler. Reads a model file, runs the passes, and writes the artifact (or the IR, or the device
// LLVM IR), the plan, or both.
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/device_code.h"
#include "compiler/choose_batch.h"
#include "compiler/compile_step.h"
#include "compiler/plan/show.h"
#include "compiler/published_source.h"
#include "frontend/frontend.h"
#include "ir/text/size_text.h"
#include "ir/text/text.h"
#include "passes/analysis/step_graph.h"
#include "passes/pass.h"
#include "passes/pipeline.h"
#include "passes/recompute.h"
#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "runtime/tell/waiting.h"
#include "tools/command_line.h"
#include "tools/examples.h"
#include "tools/fits.h"
#include "tools/gaccc_arguments.h"
#include "tools/report/report.h"
#include "tools/schema_text.h"

namespace {

using namespace gacc;

// The word as a TOML string, also where TOML would read a number: `--memory 1` lacks a unit, not quotes.
std::string toml_string(std::string_view word) {
  std::string text = "\"";
  for (const char c : word) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

passes::PipelineOptions pipeline_of(const CompilerArguments& given) {
  passes::PipelineOptions pipeline;
  pipeline.options.target = given.target;
  pipeline.print_after = given.print_after;
  pipeline.stop_after =
      given.emit == "graph" ? std::string(passes::pass_before("recompute")) : given.stop_after;
  pipeline.time_passes = given.times;
  pipeline.print_locations = given.locations;
  pipeline.sink = to_stderr;
  return pipeline;
}

// Returns the error that the option parser cannot see and no model file can make right; "" when the command line is
// valid. Adds the overrides of the model file to `overrides`: --set, and the options that are short for one.
std::string wrong_command(const CompilerArguments& given, std::vector<Override>& overrides) {
  const bool published = is_published(given.model);
  std::error_code none;  // a file that is not there is told where it is read
  const bool model_file = !published && std::filesystem::exists(given.model, none);
  if (given.emit == "toml" && model_file) return fmt::format("{} is a model file already", given.model);
  if (given.context && model_file)
    return "--context goes with a published model; a model file has its own shapes";
  if (given.pack && model_file)
    return "--pack goes with a published model; in a model file it is `documents` of the attention layers";
  if (!given.families.empty() && model_file) return "--families goes with a published model";
  for (const std::string& set : given.sets) {
    const std::optional<Override> parsed = parse_override(set);
    if (!parsed) return fmt::format("--set {}: expected KEY=VALUE", set);
    overrides.push_back(*parsed);
  }
  if (const std::string wrong = wrong_outputs(given); !wrong.empty()) return wrong;
  if (!given.memory.empty()) overrides.push_back({"memory.budget", toml_string(given.memory)});
  if (!given.host.empty()) overrides.push_back({"memory.host", toml_string(given.host)});
  if (!given.ranks.empty()) {
    const bool number = given.ranks.find_first_not_of("0123456789") == std::string::npos;
    overrides.push_back({"train.ranks", number ? given.ranks : toml_string(given.ranks)});
  }
  if (given.documents) overrides.push_back({"train.documents", fmt::to_string(*given.documents)});
  if (!given.launch.empty()) overrides.push_back({"launch.mode", toml_string(given.launch)});
  if (const std::string unknown = passes::unknown_pass(pipeline_of(given)); !unknown.empty()) return unknown;
  Diag diag("--target", "");
  if (!codegen::check_target(given.target, diag)) return diag.reports().front().text;
  return "";
}

// Only of regular files: a pipe can be read once.
bool is_artifact(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::string first(kArtifactMagic.size(), '\0');
  std::ifstream(path, std::ios::binary).read(first.data(), static_cast<std::streamsize>(first.size()));
  return first == kArtifactMagic;
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

using Row = std::array<std::string, 5>;

std::string trained_text(const LayerSummary& layer) {
  if (layer.parameters == 0) return "";
  return layer.trained == layer.parameters ? "yes" : layer.trained == 0 ? "no" : "in part";
}

// Returns the text of --summary: a row for each layer, and the totals.
std::string summary_text(const std::vector<LayerSummary>& layers) {
  std::vector<Row> rows = {{"layer", "type", "output per sample", "parameters", "trained"}};
  int64_t parameters = 0, trained = 0;
  for (const LayerSummary& layer : layers) {
    parameters += layer.parameters;
    trained += layer.trained;
    const std::string type =
        layer.tied.empty() ? layer.type : fmt::format("{}, tied to {}", layer.type, layer.tied);
    rows.push_back({layer.name, type, ir::shape_text(layer.output),
                    layer.parameters == 0 ? "" : count_text(layer.parameters), trained_text(layer)});
  }
  rows.push_back({"total", "", "", count_text(parameters), ""});
  rows.push_back({"trained", "", "", count_text(trained), ""});
  rows.push_back({"frozen", "", "", count_text(parameters - trained), ""});
  std::array<size_t, 5> width{};
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    const std::string line = fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}  {}", row[0], width[0], row[1],
                                         width[1], row[2], width[2], row[3], width[3], row[4]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
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
    GACC_TRY(files.back()->open(output.path));
    GACC_TRY(files.back()->write(output.text));
  }
  for (const Output& output : outputs)
    if (output.path == "-") GACC_TRY(write_output("-", output.text));
  for (const auto& file : files) GACC_TRY(file->commit());
  return {};
}

// One run of the compiler. Its steps follow each other; each gives an exit code when the run ends there.
class Compilation {
 public:
  explicit Compilation(const CompilerArguments& arguments) : arguments_(arguments), clock_(arguments.times) {}

  int run() {
    for (const auto step : {&Compilation::read, &Compilation::transform, &Compilation::generate})
      if (const std::optional<int> exit = (this->*step)()) return *exit;
    describe();
    return finish();
  }

 private:
  using Ended = std::optional<int>;

  // Says what is wrong; the exit status.
  static int report(const CompileTrouble& trouble) {
    to_stderr(trouble.text);
    return trouble.bug ? kBug : kFailed;
  }

  int finish() {
    std::string notes;
    for (const Output& output : outputs_)
      if (output.path != "-") notes += fmt::format("gaccc: wrote {}\n", output.path);
    const Status status = write_outputs(outputs_);
    if (!status) return exit_status(status);
    clock_.phase("write");
    to_stderr(notes);
    return kDone;
  }

  // Command line and model file, to a module of phase `model`.
  Ended read() {
    if (is_artifact(arguments_.model))
      return fail(kFailed, fmt::format("{} is an artifact already: gacc-exec {} --data SPEC trains with it",
                                       arguments_.model, arguments_.model));
    if (const std::string wrong = wrong_command(arguments_, overrides_); !wrong.empty())
      return fail(kWrongCommand, wrong);
    const LongWork work(fmt::format("reading {}", arguments_.model));
    if (!is_published(arguments_.model)) {
      Result<std::string> text = read_model(arguments_.model);
      if (!text) return exit_status(text.status());
      file_ = {.text = text.take(), .file = arguments_.model == "-" ? "<stdin>" : arguments_.model};
    }
    if (arguments_.fits) return show_fits();
    ModelSource source;
    PublishedOptions options{.context = arguments_.context, .lora = arguments_.lora};
    if (const auto trouble = read_source(options, source, overrides_)) return report(*trouble);
    if (arguments_.emit == "toml") {
      outputs_.push_back({arguments_.output_path(), source.text});
      return finish();
    }
    if (arguments_.lora && !is_published(arguments_.model))
      to_stderr(
          "gaccc: note: adapters are trained beside weights that stay: give them with gacc-exec --load FILE; "
          "without it they are random\n");
    compiler_.emplace(source, overrides_);
    compiler_->strict = arguments_.strict;
    compiler_->on_note = to_stderr;
    compiler_->on_phase = [this](std::string_view name) { clock_.phase(name); };
    if (const std::optional<CompileTrouble> trouble = compiler_->read()) return report(*trouble);
    if (!arguments_.summary) return {};
    outputs_.push_back({"-", summary_text(compiler_->summary())});
    if (arguments_.writes_output() || arguments_.plan || !arguments_.report.empty()) return {};
    return finish();
  }

  // Gives the model file, or makes it of a published model, and adds to what is set.
  std::optional<CompileTrouble> read_source(const PublishedOptions& options, ModelSource& source,
                                            std::vector<Override>& overrides) const {
    if (is_published(arguments_.model)) {
      PublishedOptions all = options;
      all.pack = arguments_.packs();
      all.overrides = overrides;
      all.target = arguments_.target;
      return read_published(arguments_.model, arguments_.families, std::move(all), source);
    }
    source = file_;
    if (options.lora) add_adapters(source, *options.lora, overrides);
    return {};
  }

  // Prints which cards the model trains on.
  int show_fits() {
    FitsRequest request{.published = is_published(arguments_.model),
                        .lora = arguments_.lora,
                        .context = arguments_.context,
                        .cards = parse_cards(*arguments_.fits).value(),
                        .target = arguments_.target,
                        .strict = arguments_.strict};
    request.read = [this](const PublishedOptions& options, ModelSource& source,
                          std::vector<Override>& overrides) {
      overrides = overrides_;
      return read_source(options, source, overrides);
    };
    Fits fits;
    const LongWork work("finding what fits on each card");
    if (const auto trouble = find_fits(request, fits)) return report(*trouble);
    outputs_.push_back({"-", arguments_.json ? fits_json(fits).dump(2) + "\n" : fits_text(fits, columns_)});
    return finish();
  }

  // The passes, after micro-batch and recompute are chosen where the model leaves that open.
  Ended transform() {
    if (const auto trouble = compiler_->transform(pipeline_of(arguments_))) return report(*trouble);
    return {};
  }

  // The output that --emit names, and the plan.
  Ended generate() {
    if (arguments_.plan || !arguments_.report.empty()) plan_ = plan_of(compiler_->module());
    if (!arguments_.writes_output()) return {};
    std::string output;
    if (arguments_.emit == "ir") {
      output = ir::print(compiler_->module(), {.locations = arguments_.locations});
    } else if (arguments_.emit == "graph") {
      output = passes::print_graph(passes::step_graph(compiler_->module(), arguments_.target));
    } else if (arguments_.emit == "svg") {
      output = report::memory_svg(compiler_->module());
    } else {
      const bool shows_llvm_ir = arguments_.emit == "llvm";
      Compiled compiled;
      if (const std::optional<CompileTrouble> trouble = compiler_->generate(compiled, shows_llvm_ir))
        return report(*trouble);
      output = std::move(shows_llvm_ir ? compiled.llvm_ir : compiled.artifact);
    }
    outputs_.push_back({arguments_.output_path(), std::move(output)});
    return {};
  }

  // Returns what other budgets would get, and the one that was asked for: of the step as the pass recompute got it.
  std::vector<passes::TradeOff> curve(int points) const {
    std::string refused;
    const std::optional<ir::Module> step = compiler_->before("recompute", {}, compiler_->options(), refused);
    if (!step) return {};
    const auto& asked = compiler_->module().settings.recompute;
    const bool budget = *asked.policy == "budget" && asked.budget.given();
    return passes::trade_off(*step, compiler_->options(), points, budget ? *asked.budget : 0);
  }

  // Returns what less and more on the host would leave in the arena.
  std::vector<HostPoint> host_curve() const {
    constexpr int kPoints = 5;
    std::string refused;
    const CompileUnchunked compile = [&](const std::vector<Override>& more) {
      return compiler_->before("chunk-loss", more, compiler_->options(), refused);
    };
    const std::optional<ir::Module> model = compile({});
    if (!model) return {};
    passes::Options hasty = compiler_->options();
    hasty.plan_effort = 0;
    return BatchChooser(*model, compile, hasty).host_curve(kPoints);
  }

  // Prepares --report and --plan.
  void describe() {
    const bool report = !arguments_.report.empty();
    if (!report && !arguments_.plan) return;
    const LongWork work(report ? "making the report" : "printing the plan");
    const ir::Module& module = compiler_->module();
    const passes::RecomputeReport recompute = passes::recompute_report(module, arguments_.target);
    const bool ranks = module.settings.train.ranks.given() || !arguments_.ranks.empty() ||
                       (!arguments_.link.empty() && module.host_bytes == 0);
    report::KernelCosts kernels;
    if (arguments_.kernels || ranks || report || module.host_bytes > 0)
      kernels = report::kernel_costs(module, arguments_.link_speed());
    const report::RankCosts sums = report::rank_costs(module, arguments_.link_speed(), kernels);
    nlohmann::ordered_json json = plan_json(plan_, module, recompute);
    const std::string& because = compiler_->source().precision_because;
    if (!because.empty()) json["precision_because"] = because;
    report::HostCosts host = report::host_costs(module, arguments_.link_speed(), kernels);
    if (*module.settings.memory.host > 0) host.curve = host_curve();
    report::add_host(json, host);
    if (ranks) report::add_ranks(json, sums);
    if (arguments_.kernels || report) report::add_kernels(json, kernels);
    if (report) {
      // A point of the curve is a plan of its own: fewer of a large step.
      const int points = plan_.kernels_per_launch < 400 ? 12 : plan_.kernels_per_launch < 800 ? 6 : 3;
      json["version"] = GACC_VERSION;
      report::add_memory(json, module, recompute, curve(points));
      outputs_.push_back({arguments_.report, report::page(json)});
      clock_.phase("report");
    }
    if (arguments_.plan && arguments_.json)
      outputs_.push_back({"-", json.dump(2) + "\n"});
    else if (arguments_.plan)
      outputs_.push_back(
          {"-", wrapped(plan_text(plan_, module, recompute, because) +
                            report::timeline_text(module, std::min<size_t>(columns_, 80)) +
                            report::host_text(host) + (ranks ? report::ranks_text(sums, kernels) : ""),
                        columns_, 20) +
                    (arguments_.kernels ? report::kernels_text(kernels) : "")});
  }

  const CompilerArguments& arguments_;
  Clock clock_;
  std::vector<Override> overrides_;
  ModelSource file_;                      // the model file; of a published model it is made by `read_source`
  std::optional<StepCompiler> compiler_;  // made by `read`
  Plan plan_;
  std::vector<Output> outputs_;
  const size_t columns_ = terminal_columns(std::numeric_limits<size_t>::max());  // of what is printed
};

// Prints the model file of that name; the exit status.
int print_example(const std::string& name) {
  std::vector<std::string> names;
  for (const Example& example : examples()) {
    names.push_back(std::filesystem::path(example.file).stem());
    if (names.back() == name) return exit_status(write_output("-", example.text));
  }
  return fail(kWrongCommand,
              fmt::format("there is no example {}; there are {}", name, fmt::join(names, ", ")));
}

int run(int argc, char** argv) {
  CompilerArguments arguments;
  if (const std::optional<int> ended = parse_arguments(argc, argv, arguments)) return *ended;
  if (!arguments.example.empty()) return print_example(arguments.example);
  if (arguments.schema)
    return exit_status(write_output("-", arguments.json       ? schema_json()
                                         : arguments.markdown ? schema_markdown()
                                                              : schema_text()));
  const Waiting waiting(arguments.quiet);
  return Compilation(arguments).run();
}

}  // namespace

int main(int argc, char** argv) {
  // A compilation makes and drops many tables of megabytes: what is given back to the system is soon taken again.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    to_stderr(bug_text(error.what()));
    return kBug;
  }
}
