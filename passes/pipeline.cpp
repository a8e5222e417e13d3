// The pass manager. A module that breaks a rule after a pass is a bug of that pass: the report names the
// pass, the rule and the op, and shows the module as it was before.
#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>

#include "ir/text/size_text.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"
#include "passes/analysis/check_plan.h"
#include "passes/schedule/launches.h"

namespace gacc::passes {

namespace {

constexpr std::string_view kNothing = "model";  // stop after the frontend, whose phase that is

struct Timing {
  std::string_view name;
  double milliseconds;
};

size_t op_count(const ir::Module& module) {
  size_t count = 0;
  for (const ir::RegionKind kind : ir::all_regions) count += module.region(kind).ops.size();
  return count;
}

std::string time_table(const std::vector<Timing>& timings) {
  double total = 0;
  for (const Timing& timing : timings) total += timing.milliseconds;
  std::string out = "pass          milliseconds  share\n";
  for (const Timing& timing : timings)
    out += fmt::format("{:<12} {:>13.3f} {:>5.1f}%\n", timing.name, timing.milliseconds,
                       total > 0 ? 100 * timing.milliseconds / total : 0.0);
  return out + fmt::format("{:<12} {:>13.3f}\n", "total", total);
}

// Asks for the place in the pipeline that a pass has no right to be in.
std::string wrong_phase(const Pass& pass, ir::Phase phase) {
  if (pass.needs && phase != *pass.needs)
    return fmt::format("pass `{}` needs a module in phase `{}`, this one is in phase `{}`", pass.name,
                       ir::phase_text(*pass.needs), ir::phase_text(phase));
  if (!pass.needs && phase >= ir::Phase::fused)
    return fmt::format("pass `{}` runs before `fuse`, this module is in phase `{}`", pass.name,
                       ir::phase_text(phase));
  return "";
}

std::string internal_error(const Pass& pass, std::string_view what, const std::string& before) {
  return fmt::format(
      "internal error: pass `{}` left an invalid module\n{}\nThis is a bug in gacc; please report it with "
      "the model "
      "file. The module before the pass:\n{}",
      pass.name, what, before);
}

// Says what the verifier and, once there are places, the checker of plans find; "": nothing.
std::string problem_of(const ir::Module& module) {
  Diag broken;  // without a file: what it finds is about the module, not about the user's text
  if (!ir::verify(module, broken)) return broken.render();
  return module.phase == ir::Phase::planned ? check_plan(module) : "";
}

// Runs the passes once more, with a look after each: the report of the pass that breaks a rule, or `report`.
PipelineResult find_culprit(ir::Module module, PipelineOptions options, const std::string& report) {
  options.verify = Verify::each_pass;
  options.sink = nullptr;
  Diag none;
  PipelineResult found = run_pipeline(module, options, none);
  if (found.internal_error.empty()) found.internal_error = report;
  return found;
}

}  // namespace

std::string unknown_pass(const PipelineOptions& options) {
  std::vector<std::string_view> known;
  for (const Pass& pass : all_passes()) known.push_back(pass.name);
  std::vector<std::string_view> asked(options.passes.begin(), options.passes.end());
  for (const std::string& name : options.print_after)
    if (name != "all") asked.push_back(name);
  if (!options.stop_after.empty() && options.stop_after != kNothing) asked.push_back(options.stop_after);
  for (const std::string_view name : asked)
    if (find_pass(name) == nullptr)
      return fmt::format("there is no pass `{}`{}", name, did_you_mean(name, known));
  return "";
}

PipelineResult run_pipeline(ir::Module& module, const PipelineOptions& options, Diag& diag) {
  using Clock = std::chrono::steady_clock;
  std::vector<const Pass*> order;
  for (const std::string& name : options.passes) order.push_back(find_pass(name));
  if (options.passes.empty() && !options.nothing && options.stop_after != kNothing)
    for (const Pass& pass : all_passes()) order.push_back(&pass);
  const auto wants_print = [&](std::string_view name) {
    return std::ranges::any_of(options.print_after,
                               [&](const std::string& wanted) { return wanted == name || wanted == "all"; });
  };

  const ir::Module first = options.verify == Verify::twice ? module : ir::Module{};
  std::vector<Timing> timings;
  for (const Pass* const& pass : order) {
    if (pass == nullptr) return {.internal_error = "internal error: " + unknown_pass(options)};
    if (const std::string problem = wrong_phase(*pass, module.phase); !problem.empty()) {
      diag.error(Kind::invalid_ir, {}, "{}", problem);
      return {};
    }
    if (options.on_pass)
      options.on_pass(pass->name, static_cast<size_t>(&pass - order.data()) + 1, order.size());
    const bool each = options.verify == Verify::each_pass;
    const bool prints = options.sink && wants_print(pass->name);
    const ir::Module before = each || prints ? module : ir::Module{};
    const size_t ops_before = op_count(module);

    const auto start = Clock::now();
    const bool done = pass->run(module, options.options, diag);
    timings.push_back({pass->name, std::chrono::duration<double, std::milli>(Clock::now() - start).count()});
    if (!done || diag.failed()) {
      if (diag.failed()) return {};
      return {.internal_error = internal_error(*pass, "it failed without saying why", ir::print(before))};
    }
    const bool new_phase = pass->gives && *pass->gives != module.phase;
    if (new_phase) module.phase = *pass->gives;

    const bool last = pass == order.back() || pass->name == options.stop_after;
    const bool fused = new_phase && module.phase == ir::Phase::fused;
    if (each || (options.verify == Verify::twice && (fused || last))) {
      if (const std::string problem = problem_of(module); !problem.empty()) {
        const std::string here =
            internal_error(*pass, problem, each ? ir::print(before) : "(it was not kept)\n");
        return each ? PipelineResult{.internal_error = here} : find_culprit(first, options, here);
      }
    }

    if (prints) {
      const std::string after = ir::print(module, {.locations = options.print_locations});
      const auto change = static_cast<int64_t>(op_count(module)) - static_cast<int64_t>(ops_before);
      const bool same = !options.print_locations && after == ir::print(before);
      options.sink(fmt::format("// ----- after {}: phase {}, {} ({:+}){}\n{}", pass->name,
                               ir::phase_text(module.phase), ir::counted(op_count(module), "op"), change,
                               same ? " (unchanged)" : "", same ? std::string() : after));
    }
    if (pass->name == options.stop_after) break;
  }
  if (options.sink && options.time_passes) options.sink(time_table(timings));
  // Schedules are checked once, at the end: the verifier has looked after every pass.
  if (module.phase == ir::Phase::scheduled) {
    std::string problem = check_schedule(module);
    if (problem.empty()) problem = check_plan(module);
    if (!problem.empty()) {
      if (!timings.empty())
        return {.internal_error = internal_error(*order.back(), problem, ir::print(module))};
      diag.error(Kind::invalid_ir, {}, "{}", problem);
      return {};
    }
  }
  return {.ok = true};
}

}  // namespace gacc::passes
