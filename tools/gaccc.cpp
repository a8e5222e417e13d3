// gaccc: the compiler. Reads a model file, runs the passes, and writes the artifact (or the IR, or the device
// LLVM IR), the plan, or both.
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/compile_step.h"
#include "compiler/plan_recompute.h"
#include "compiler/read_costs.h"
#include "frontend/frontend.h"
#include "ir/text.h"
#include "passes/pass.h"
#include "passes/pipeline.h"
#include "passes/recompute.h"
#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "tools/command_line.h"
#include "tools/compiler_arguments.h"
#include "tools/report/kernels_section.h"
#include "tools/report/page.h"
#include "tools/report/ranks_section.h"
#include "tools/report/timeline.h"
#include "tools/schema_text.h"
#include "tools/summary.h"

namespace {

using namespace gacc;

constexpr int64_t kModelLimit = int64_t{64} << 20;  // bytes of a model file

// Only of regular files: a pipe can be read once.
bool is_artifact(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  constexpr std::string_view kArtifactMagic = "// gacc artifact ";
  std::string first(kArtifactMagic.size(), '\0');
  std::ifstream(path, std::ios::binary).read(first.data(), static_cast<std::streamsize>(first.size()));
  return first == kArtifactMagic;
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
  int report(const CompileTrouble& trouble) const {
    if (trouble.bug) return bug(trouble.text);
    to_stderr(trouble.text);
    return kFailed;
  }

  int finish() {
    if (const Status status = write_outputs(outputs_); !status) return fail(kFailed, status.text());
    clock_.phase("write");
    return kDone;
  }

  // Command line and model file, to a module of phase `model`.
  Ended read() {
    if (is_artifact(arguments_.model))
      return fail(kFailed, fmt::format("{} is an artifact already: gacc-exec {} --data SPEC trains with it",
                                       arguments_.model, arguments_.model));
    if (const std::string wrong = wrong_command(arguments_, overrides_); !wrong.empty())
      return fail(kWrongCommand, wrong);
    Result<std::string> text = read_input(arguments_.model, kModelLimit);
    if (!text) return fail(kFailed, text.status().text());
    compiler_.emplace(text.take(), arguments_.model == "-" ? "<stdin>" : arguments_.model, overrides_);
    compiler_->on_note = to_stderr;
    compiler_->on_phase = [this](std::string_view name) { clock_.phase(name); };
    if (const std::optional<CompileTrouble> trouble = compiler_->read()) return report(*trouble);
    if (!arguments_.summary) return {};
    outputs_.push_back({"-", summary_text(compiler_->summary())});
    if (arguments_.writes_output() || arguments_.plan || !arguments_.report.empty()) return {};
    return finish();
  }

  // The passes, after micro-batch and recompute are chosen where the model leaves that open.
  Ended transform() {
    const bool named = passes::has_cost_model(arguments_.costs);
    passes::PipelineOptions pipeline;
    pipeline.options.target = arguments_.target;
    passes::CostModel& costs = pipeline.options.costs;
    costs = passes::cost_model(named ? arguments_.costs : arguments_.target);
    if (!arguments_.costs.empty() && !named) {
      if (const Status status = read_costs(arguments_.costs, costs); !status)
        return fail(kFailed, status.text());
    }
    pipeline.print_after = arguments_.print_after;
    pipeline.stop_after =
        arguments_.emit == "graph" ? std::string(passes::pass_before("recompute")) : arguments_.stop_after;
    pipeline.time_passes = arguments_.times;
    pipeline.print_locations = arguments_.locations;
    pipeline.sink = to_stderr;
    if (const std::optional<CompileTrouble> trouble = compiler_->transform(pipeline)) return report(*trouble);
    return {};
  }

  // The output that --emit names, and the plan.
  Ended generate() {
    if (arguments_.plan || !arguments_.report.empty() || arguments_.emit == "ptx")
      plan_ = write_plan(compiler_->module(), plan_facts(compiler_->module(), arguments_.target));
    if (!arguments_.writes_output()) return {};
    std::string output;
    if (arguments_.emit == "ir") {
      output = ir::print(compiler_->module(), {.locations = arguments_.locations});
    } else if (arguments_.emit == "graph") {
      output = passes::print_graph(passes::step_graph(compiler_->module(), compiler_->options().costs));
    } else {
      Compiled compiled;
      if (const std::optional<CompileTrouble> trouble = compiler_->generate(plan_, compiled))
        return report(*trouble);
      output = std::move(arguments_.emit == "llvm" ? compiled.llvm_ir : compiled.artifact);
    }
    outputs_.push_back({output_path(arguments_), std::move(output)});
    return {};
  }

  // What other budgets would get, and the one that was asked for: of the step as the pass recompute got it.
  std::vector<passes::TradeOff> curve(int points) const {
    std::string refused;
    const std::optional<ir::Module> step = compiler_->fused({}, refused);
    if (!step) return {};
    const auto& asked = compiler_->module().settings.recompute;
    const bool budget = *asked.policy == "budget" && asked.budget.given();
    return passes::trade_off(*step, compiler_->options(), points, budget ? *asked.budget : 0);
  }

  // What --report and --plan show.
  void describe() {
    const bool report = !arguments_.report.empty();
    if (!report && !arguments_.plan) return;
    const passes::RecomputeReport recompute =
        passes::recompute_report(compiler_->module(), compiler_->options().costs);
    if (report) {
      // A point of the curve is a plan of its own: fewer of a large step.
      const int points = plan_.kernels_per_launch < 400 ? 12 : plan_.kernels_per_launch < 800 ? 6 : 3;
      outputs_.push_back(
          {arguments_.report, report::report_page(compiler_->module(), plan_, recompute, curve(points))});
      clock_.phase("report");
    }
    if (!arguments_.plan) return;
    const PlanRecompute costs = plan_recompute(recompute);
    const ir::Module& module = compiler_->module();
    const bool ranks =
        module.settings.train.ranks.given() || !arguments_.ranks.empty() || !arguments_.link.empty();
    report::KernelCosts kernels;
    if (arguments_.kernels || ranks) kernels = report::kernel_costs(module);
    const report::RankCosts sums = report::rank_costs(module, arguments_.link_speed(), kernels);
    if (arguments_.json) {
      nlohmann::ordered_json json = plan_json(plan_, module, costs);
      if (ranks) report::add_ranks(json, sums);
      if (arguments_.kernels) report::add_kernels(json, kernels);
      outputs_.push_back({"-", json.dump(2) + "\n"});
      return;
    }
    outputs_.push_back({"-", plan_text(plan_, module, costs) +
                                 report::timeline_text(report::memory_map(module)) +
                                 (ranks ? report::ranks_text(sums, kernels) : "") +
                                 (arguments_.kernels ? report::kernels_text(kernels) : "")});
  }

  const CompilerArguments& arguments_;
  Clock clock_;
  std::vector<Override> overrides_;
  std::optional<StepCompiler> compiler_;  // made by `read`
  Plan plan_;
  std::vector<Output> outputs_;
};

int run(int argc, char** argv) {
  CompilerArguments arguments;
  if (const std::optional<int> ended = parse_arguments(argc, argv, arguments)) return *ended;
  if (arguments.schema) {
    const bool more = arguments.plan || arguments.summary || arguments.kernels || !arguments.output.empty() ||
                      !arguments.report.empty() || !arguments.sets.empty();
    if (more || (arguments.json && arguments.markdown))
      return fail(kWrongCommand, "--schema goes with --json or --markdown, and nothing else");
    const Output page{"-", arguments.json       ? schema_json()
                           : arguments.markdown ? schema_markdown()
                                                : schema_text()};
    if (const Status status = write_outputs({page}); !status) return fail(kFailed, status.text());
    return kDone;
  }
  return Compilation(arguments).run();
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return bug(error.what());
  }
}
