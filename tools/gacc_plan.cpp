// gacc-plan: the planners on their own input, for those who research them and for tests.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>

#include "passes/planner/offsets_csv.h"
#include "passes/planner/recompute_search.h"
#include "runtime/atomic_file.h"
#include "tools/command_line.h"

namespace {

using namespace gacc;
using namespace gacc::passes;

struct Arguments {
  std::string file, out;  // out: "-" is standard output, "" writes none
  int64_t bytes = 0;
  int effort = 1;
};

int run_offsets(const Arguments& arguments, const std::string& text) {
  std::string problem;
  planner::BufferTable table;
  if (!planner::parse_buffers(text, table, problem)) return fail(kFailed, arguments.file + ":" + problem);
  const int64_t bound = planner::liveness_bound(table.blocks);
  const planner::Packing packing = planner::pack(table.blocks, arguments.bytes);
  if (packing.placement)
    return exit_status(
        write_output(arguments.out, planner::print_buffers(table, packing.placement->offsets)));
  if (bound > arguments.bytes)
    return fail(kFailed,
                fmt::format("no placement within {} bytes: {} bytes live at one time (proven infeasible)",
                            arguments.bytes, bound));
  return fail(
      kFailed,
      fmt::format("no placement within {} bytes {}; {} bytes live at one time", arguments.bytes,
                  packing.proven ? "exists (proven infeasible)" : "found (not proven infeasible)", bound));
}

std::string to_json(const planner::Recompute& plan) {
  if (!plan.feasible)
    return fmt::format("{{\"feasible\": false, \"proven\": {}, \"base_peak\": {}, \"base_cost\": {}}}\n",
                       plan.proven, plan.base_peak, plan.base_cost);
  return fmt::format(
      "{{\"feasible\": true, \"base_peak\": {}, \"base_cost\": {}, \"peak\": {}, \"cost\": {}, "
      "\"lower_bound_cost\": {}, \"gap\": {}, \"recomputed_ops\": {}}}\n",
      plan.base_peak, plan.base_cost, plan.peak, plan.cost, plan.lower_bound, plan.gap(), plan.reruns);
}

int run_recompute(const Arguments& arguments, const std::string& text) {
  std::string problem;
  planner::Graph graph;
  if (!planner::parse_graph(text, graph, problem)) return fail(kFailed, arguments.file + ":" + problem);
  const planner::Recompute plan = planner::plan_recompute(graph, arguments.bytes, arguments.effort);
  if (plan.feasible && !arguments.out.empty()) {
    const Status status = write_output(arguments.out, planner::print_schedule(graph, plan.schedule));
    if (!status) return exit_status(status);
  }
  const int code = exit_status(write_output("-", to_json(plan)));
  return plan.feasible ? code : kFailed;
}

int run(const Arguments& arguments, int (*plan)(const Arguments&, const std::string&)) {
  if (const std::string wrong = wrong_outputs({{"file", FileUse::reads, {source_of(arguments.file)}},
                                               {"-o", FileUse::writes, {target_of(arguments.out)}}});
      !wrong.empty())
    return fail(kWrongCommand, wrong);
  const Result<std::string> text = read_input(arguments.file);
  return text ? plan(arguments, *text) : exit_status(text.status());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plans offsets and recompute for graphs given as files.", "gacc-plan");
  app.set_version_flag("--version", "gacc-plan " GACC_VERSION);
  app.require_subcommand(1);
  app.footer(R"(Examples:
    gacc-plan offsets buffers.csv --capacity 1048576 -o placed.csv
    gacc-plan recompute graph.txt --budget 4194304 -o schedule.txt

Exit status:
    0 done   1 there is no plan, or a file is wrong
    2 the command line is wrong
)");

  const auto command = [&](Arguments& to, const char* name, const char* does, const char* file,
                           const char* bytes, const char* of_what) {
    CLI::App* added = app.add_subcommand(name, does);
    added->add_option("file", to.file, file)->required()->type_name("");
    added->add_option(bytes, to.bytes, of_what)->required()->type_name("BYTES")->transform(whole_number(0));
    return added;
  };
  Arguments offsets{.file = "", .out = "-"}, recompute;
  CLI::App* place =
      command(offsets, "offsets", "Places buffers with given lives in one address range.",
              "CSV with the columns id, lower, upper, size", "--capacity", "bytes of the address range");
  place->add_option("-o", offsets.out, "the rows with a column offset (default: standard output)")
      ->type_name("FILE");
  CLI::App* again = command(recompute, "recompute", "Finds the cheapest schedule of a graph within a budget.",
                            "the graph: lines of OP and GET (docs/memory.md)", "--budget",
                            "bytes that may live at one time");
  again->add_option("--effort", recompute.effort, "work of the search; 0 takes the first plan (default: 1)")
      ->type_name("N")
      ->transform(whole_number(0, 1000));
  again->add_option("-o", recompute.out, "the schedule: an operation and its drops per line")
      ->type_name("FILE");

  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return run_program(
      [&] { return place->parsed() ? run(offsets, run_offsets) : run(recompute, run_recompute); });
}
