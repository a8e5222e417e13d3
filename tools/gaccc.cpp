// gaccc: the compiler. Reads a model file, runs the passes, and writes the artifact (or the IR, or the device
// LLVM IR), the plan, or both. CONTRACT section 2 fixes its options and exit codes.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/choose_batch.h"
#include "compiler/make_artifact.h"
#include "compiler/read_costs.h"
#include "frontend/frontend.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "passes/recompute.h"
#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "tools/compiler_arguments.h"
#include "tools/report/kernels_section.h"
#include "tools/report/page.h"
#include "tools/report/timeline.h"
#include "tools/summary.h"

namespace {

using namespace gacc;

enum Exit { kDone = 0, kWrongFile = 1, kWrongCommand = 2, kBug = 3 };

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

PlanRecompute plan_recompute(const passes::RecomputeReport& report) {
  return {report.policy, report.recomputed_ops, report.extra_flops, report.overhead,
          report.overhead_lower_bound};
}

// One run of the compiler. Its steps follow each other; each gives an exit code when the run ends there.
class Compilation {
 public:
  explicit Compilation(const CompilerArguments& arguments) : arguments_(arguments), clock_(arguments.times) {}

  int run() {
    for (const auto step : {&Compilation::read, &Compilation::transform, &Compilation::generate}) {
      if (const std::optional<int> exit = (this->*step)()) return *exit;
    }
    describe();
    return finish();
  }

 private:
  using Ended = std::optional<int>;

  int wrong_model() const {
    to_stderr(diag_.render());
    return kWrongFile;
  }

  int finish() {
    if (Status status = write_outputs(outputs_); !status) return fail(kWrongFile, status.text());
    clock_.phase("write");
    return kDone;
  }

  // Command line and model file, to a module of phase `model`.
  Ended read() {
    if (is_artifact(arguments_.model))
      return fail(kWrongFile,
                  fmt::format("{} is an artifact already: gacc-exec {} --data SPEC trains with it",
                              arguments_.model, arguments_.model));
    if (const std::string wrong = wrong_command(arguments_, overrides_); !wrong.empty())
      return fail(kWrongCommand, wrong);
    if (Status status = read_input(arguments_.model, text_, kModelLimit); !status)
      return fail(kWrongFile, status.text());
    file_ = arguments_.model == "-" ? "<stdin>" : arguments_.model;
    diag_ = Diag(file_, text_);
    module_ = compile_model(text_, file_, overrides_, diag_);
    if (diag_.failed()) return wrong_model();
    if (!module_) return bug("the frontend gave up without a reason");
    to_stderr(diag_.render_warnings());
    clock_.phase("frontend");
    if (!arguments_.summary) return {};
    outputs_.push_back({"-", summary_text(*summarize_model(text_, file_, overrides_, diag_))});
    if (arguments_.writes_output() || arguments_.plan || !arguments_.report.empty()) return {};
    return finish();
  }

  // The passes, after micro-batch and recompute are chosen where the model leaves that open.
  Ended transform() {
    const bool named = passes::has_cost_model(arguments_.costs);
    options_.target = arguments_.target;
    options_.costs = passes::cost_model(named ? arguments_.costs : arguments_.target);
    if (!arguments_.costs.empty() && !named) {
      if (Status status = read_costs(arguments_.costs, options_.costs); !status)
        return fail(kWrongFile, status.text());
    }
    if (has_choice(*module_)) {
      if (const Ended exit = choose(false)) return exit;
      clock_.phase("choice");
    }
    passes::PipelineOptions pipeline;
    pipeline.options = options_;
    pipeline.print_after = arguments_.print_after;
    pipeline.stop_after = arguments_.emit == "graph" ? "fuse" : arguments_.stop_after;
    pipeline.time_passes = arguments_.times;
    pipeline.print_locations = arguments_.locations;
    pipeline.sink = to_stderr;
    if (const passes::PipelineResult result = passes::run_pipeline(*module_, pipeline, diag_); !result) {
      if (!result.internal_error.empty()) return bug(result.internal_error);
      if (diag_.reports().back().kind != Kind::does_not_fit) return wrong_model();
      // Too small a budget: what would fit.
      const Diag refused = std::exchange(diag_, Diag(file_, text_));
      if (const Ended exit = choose(true)) return exit;
      diag_ = refused;
      return wrong_model();
    }
    clock_.phase("passes");
    return {};
  }

  // The model with more overrides, in phase fused; or nothing, and the first reason in `refused`.
  std::optional<ir::Module> fused(const std::vector<Override>& more, std::string& refused) const {
    std::vector<Override> all = overrides_;
    all.insert(all.end(), more.begin(), more.end());
    Diag diag(file_, text_);
    std::optional<ir::Module> module = compile_model(text_, file_, all, diag);
    passes::PipelineOptions pipeline;
    pipeline.stop_after = "fuse";
    pipeline.options = options_;
    if (module && passes::run_pipeline(*module, pipeline, diag)) return module;
    if (refused.empty()) refused = diag.render();
    return std::nullopt;
  }

  // Micro-batch, accumulation and recompute under the budget: prints the choice and compiles the model again
  // with it. Ends when nothing fits. `known`: that nothing does.
  Ended choose(bool known) {
    std::string refused;  // why a candidate cannot be compiled at all
    const CompileToFused compile = [&](const std::vector<Override>& more) { return fused(more, refused); };
    const BatchChoice choice = choose_batch(*module_, compile, options_, known);
    if (!choice.done) {
      if (choice.problem.empty()) {
        to_stderr(refused);
        return kWrongFile;
      }
      diag_.error(Kind::does_not_fit, {}, "{}", choice.problem);
      return wrong_model();
    }
    to_stderr(choice.why);
    if (choice.overrides.empty()) return {};
    overrides_.insert(overrides_.end(), choice.overrides.begin(), choice.overrides.end());
    module_ = compile_model(text_, file_, overrides_, diag_);
    if (module_ && !diag_.failed()) return {};
    return wrong_model();
  }

  // The output that --emit names, and the plan.
  Ended generate() {
    if (arguments_.plan || !arguments_.report.empty() || arguments_.emit == "ptx")
      plan_ = write_plan(*module_, plan_facts(*module_, arguments_.target));
    if (!arguments_.writes_output()) return {};
    std::string output;
    if (arguments_.emit == "ir") {
      output = ir::print(*module_, {.locations = arguments_.locations});
    } else if (arguments_.emit == "graph") {
      output = passes::print_graph(passes::step_graph(*module_, options_.costs));
    } else {
      ModelRecord record{text_, {}};
      for (const Override& each : overrides_) record.overrides.push_back(each.key + "=" + each.value);
      std::optional<Compiled> compiled = make_artifact(*module_, plan_, record, diag_);
      if (!compiled) return bug(diag_.failed() ? diag_.render() : "code generation gave up without a reason");
      clock_.phase("codegen");
      output = std::move(arguments_.emit == "llvm" ? compiled->llvm_ir : compiled->artifact);
    }
    outputs_.push_back({output_path(arguments_), std::move(output)});
    return {};
  }

  // What other budgets would get, and the one that was asked for: of the step as the pass recompute got it.
  std::vector<passes::TradeOff> curve(int points) const {
    std::string refused;
    const std::optional<ir::Module> step = fused({}, refused);
    if (!step) return {};
    const bool budget = module_->setting("recompute.policy", "none") == "budget";
    return passes::trade_off(*step, options_, points,
                             budget ? module_->setting("recompute.budget", int64_t{0}) : 0);
  }

  // What --report and --plan show.
  void describe() {
    const bool report = !arguments_.report.empty();
    if (!report && !arguments_.plan) return;
    const passes::RecomputeReport recompute = passes::recompute_report(*module_, options_.costs);
    if (report) {
      // A point of the curve is a plan of its own: fewer of a large step.
      const int points = plan_.kernels_per_launch < 400 ? 12 : plan_.kernels_per_launch < 800 ? 6 : 3;
      outputs_.push_back({arguments_.report, report::report_page(*module_, plan_, recompute, curve(points))});
      clock_.phase("report");
    }
    if (!arguments_.plan) return;
    const PlanRecompute costs = plan_recompute(recompute);
    const int64_t chunks = module_->setting("loss.chunks", int64_t{1});
    const std::vector<PlanGroup> groups = plan_groups(*module_);
    if (arguments_.json) {
      nlohmann::ordered_json json = plan_json(plan_, costs, chunks, groups);
      if (arguments_.kernels) report::add_kernels(json, report::kernel_costs(*module_));
      outputs_.push_back({"-", json.dump(2) + "\n"});
      return;
    }
    outputs_.push_back(
        {"-", plan_text(plan_, costs, chunks, groups) + report::timeline_text(report::memory_map(*module_)) +
                  (arguments_.kernels ? report::kernels_text(report::kernel_costs(*module_)) : "")});
  }

  const CompilerArguments& arguments_;
  Clock clock_;
  std::vector<Override> overrides_;  // of the command line, then what `choose` chose
  std::string text_, file_;          // the model's, and its name in messages
  Diag diag_;
  std::optional<ir::Module> module_;
  passes::Options options_;
  Plan plan_;
  std::vector<Output> outputs_;
};

int run(int argc, char** argv) {
  CompilerArguments arguments;
  if (const std::optional<int> ended = parse_arguments(argc, argv, arguments)) return *ended;
  return Compilation(arguments).run();
}

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  try {
    signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit of its size is an error like a full disk
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(kWrongFile, "out of memory");
  } catch (const std::exception& error) {
    return bug(error.what());
  }
}
