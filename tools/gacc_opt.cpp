// gacc-opt: reads textual IR, runs passes (perhaps none, which only checks it), prints textual IR. The door that
// golden tests and curious people use.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "codegen/device_code.h"
#include "compiler/compile_step.h"
#include "ir/op_info.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"
#include "passes/analysis/check_plan.h"
#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "tools/command_line.h"

namespace {

using namespace gacc;

struct Arguments {
  std::string file, out = "-", passes, target = "sm_80", emit = "ir";
  std::vector<std::string> print_after;
  bool list_passes = false, list_ops = false, markdown = false, locations = false, times = false,
       check = false;
};

// Separated by commas or spaces.
std::vector<std::string> names(std::string list) {
  std::ranges::replace(list, ',', ' ');
  std::istringstream words(list);
  return {std::istream_iterator<std::string>(words), {}};
}

// Says what a text is that does not begin as IR does, with comments and `module`; "" where it does.
std::string what_it_is(std::string_view text, const std::string& name) {
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n", at)) != text.npos && (text[at] == '#' || text[at] == '/'))
    at = text.find('\n', at);
  if (at == text.npos) return "";
  const std::string_view line = text.substr(at, text.find('\n', at) - at);
  if (line.starts_with(".version") || text.starts_with(kArtifactMagic))
    return fmt::format("{} is an artifact, which gacc-exec runs", name);
  if (line.starts_with('[') || (line.find('=') != line.npos && !line.starts_with("module")))
    return fmt::format(
        "{0} is a model file: gaccc {0} -o step.ptx compiles it, and gaccc {0} --emit ir writes IR", name);
  return "";
}

int run(const Arguments& arguments) {
  if (const std::string wrong = wrong_outputs({{"FILE", FileUse::reads, {source_of(arguments.file)}},
                                               {"-o", FileUse::writes, {target_of(arguments.out)}}});
      !wrong.empty())
    return fail(kWrongCommand, wrong);
  const auto output = [&](const std::string& text) { return exit_status(write_output(arguments.out, text)); };
  if (arguments.list_passes)
    return output(arguments.markdown ? passes::passes_markdown() : passes::passes_text());
  if (arguments.list_ops) {
    if (arguments.markdown) return output(ir::ops_markdown());
    std::string text;
    for (const ir::OpInfo* op : ir::all_ops()) text += fmt::format("{:<18} {}\n", op->name, op->summary);
    return output(text);
  }
  if (arguments.file.empty()) return fail(kWrongCommand, "no input file; '-' reads standard input");

  if (Diag wrong_target; !codegen::check_target(arguments.target, wrong_target))
    return fail(kWrongCommand, wrong_target.reports().front().text);
  passes::PipelineOptions options;
  options.passes = names(arguments.passes);
  options.nothing = options.passes.empty();
  options.print_after = arguments.print_after;
  options.print_locations = arguments.locations;
  options.time_passes = arguments.times;
  options.options.target = arguments.target;
  options.sink = to_stderr;
  if (const std::string unknown = passes::unknown_pass(options); !unknown.empty())
    return fail(kWrongCommand, unknown);

  const Result<std::string> text = read_input(arguments.file);
  if (!text) return exit_status(text.status());
  const std::string name = arguments.file == "-" ? "<stdin>" : arguments.file;
  if (const std::string other = what_it_is(*text, name); !other.empty())
    return fail(kFailed, "gacc-opt reads IR: " + other);
  Diag diag(name, *text);
  std::optional<ir::Module> module = ir::parse(*text, diag);
  if (!module || !ir::verify(*module, diag)) {
    to_stderr(diag.render());
    return kFailed;
  }
  if (const passes::PipelineResult result = passes::run_pipeline(*module, options, diag); !result) {
    to_stderr(result.internal_error.empty() ? diag.render() : result.internal_error);
    return result.internal_error.empty() ? kFailed : kBug;
  }
  if (arguments.check) {
    if (const std::string problem = passes::check_plan(*module); !problem.empty())
      return fail(kFailed, "the plan is wrong: " + problem);
  }
  if (arguments.emit == "ir") return output(ir::print(*module, {.locations = arguments.locations}));
  if (module->phase != ir::Phase::scheduled)
    return fail(kFailed,
                fmt::format("--emit {} needs a module in phase `scheduled`, this one is in phase `{}`",
                            arguments.emit, ir::phase_text(module->phase)));
  const bool shows_llvm_ir = arguments.emit == "llvm";
  const std::optional<Compiled> compiled = make_artifact(*module, "", {}, diag, shows_llvm_ir);
  if (compiled) return output(shows_llvm_ir ? compiled->llvm_ir : compiled->artifact);
  to_stderr(diag.render());
  return kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs passes over textual IR (.gir) and prints the result.", "gacc-opt");
  app.add_option("FILE", arguments.file, "the IR; '-' is standard input")->type_name("");
  app.add_option("--passes", arguments.passes, "passes to run, in order, separated by commas; default none")
      ->type_name("LIST");
  app.add_option("-o", arguments.out, "where the result goes; default and '-': standard output")
      ->type_name("FILE");
  app.add_option("--print-after", arguments.print_after,
                 "print the IR after this pass, or after all, on standard error")
      ->type_name("PASS|all");
  app.add_option("--target", arguments.target, "the GPU that pass `select` chooses for; default sm_80")
      ->type_name("sm_NN");
  app.add_option("--emit", arguments.emit,
                 "the IR (default), or of a scheduled module the artifact or its LLVM IR")
      ->check(CLI::IsMember({"ir", "ptx", "llvm"}));
  app.add_flag("--print-locs", arguments.locations, "end lines in the place they come from");
  app.add_flag("--time-passes", arguments.times, "print a table of times on standard error");
  app.add_flag("--check-plan", arguments.check,
               "replay the memory plan of the result and report the first fault");
  app.add_flag("--list-passes", arguments.list_passes, "list the passes in pipeline order");
  app.add_flag("--list-ops", arguments.list_ops, "list the ops");
  app.add_flag("--markdown", arguments.markdown, "lists as the pages docs/passes.md and docs/ops.md");
  app.set_version_flag("--version", "gacc-opt " GACC_VERSION);
  app.footer(R"(Examples:
    gaccc model.toml --emit ir --stop-after autodiff -o m.gir    IR to begin with
    gacc-opt m.gir --passes "cse,dce"                            runs two passes and prints the result
    gacc-opt --list-passes                                       all passes, in pipeline order

Exit status:
    0 done   1 the IR or a file is wrong   2 the command line is wrong   3 a bug in gacc
)");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_program([&] { return run(arguments); });
}
