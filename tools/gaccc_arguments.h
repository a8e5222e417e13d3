// The command line of gaccc: one table has all of its options (tools/option_table.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/option_table.h"

namespace gacc {

constexpr const char* kUsualCards = "4,6,8,12,16,24,40,80";  // of --fits

struct CompilerArguments {
  std::string model, output, emit = "ptx", target = "sm_80", memory, host, launch, report, stop_after;
  std::string ranks, link, families, example;
  std::optional<int64_t> context, lora, documents;
  std::optional<std::string> fits;
  std::vector<std::string> sets, print_after;
  bool plan = false, kernels = false, summary = false, json = false, times = false, locations = false;
  bool schema = false, markdown = false, strict = false, pack = false, quiet = false;

  // Says that the work is to print something that needs no model.
  bool prints() const { return schema || !example.empty(); }
  bool writes_output() const { return !(prints() || plan || summary || fits) || !output.empty(); }
  bool packs() const { return pack || documents; }
  std::string output_path() const;           // of the artifact (or IR, or text); "-" is standard output
  std::optional<double> link_speed() const;  // --link, bytes a second
};

// Returns the table of all options, over the members of `to`.
OptionRows option_table(CompilerArguments& to);

// Reads the command line. Returns the exit status, and everything is printed, when there is nothing to compile: 0 after
// --help and --version, 2 for a command line that no model can make right.
[[nodiscard]] std::optional<int> parse_arguments(int argc, char** argv, CompilerArguments& to);

// Returns what is wrong with the files that the command line names, or "".
std::string wrong_outputs(CompilerArguments given);

}  // namespace gacc
