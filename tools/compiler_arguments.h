// The command line of gaccc.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "frontend/frontend.h"

namespace gacc {

struct CompilerArguments {
  std::string model, output, emit = "ptx", target = "sm_80", memory, launch, costs, report, stop_after;
  std::string ranks, link;
  std::vector<std::string> sets, print_after;
  bool plan = false, kernels = false, summary = false, json = false, times = false, locations = false;
  bool schema = false, markdown = false;
  bool writes_output() const { return !(plan || summary) || !output.empty(); }
  std::optional<double> link_speed() const;  // --link, bytes a second
};

// The exit status, and everything is printed, when there is nothing to compile: after --help and --version,
// and for a command line that the option parser refuses (not 0).
[[nodiscard]] std::optional<int> parse_arguments(int argc, char** argv, CompilerArguments& to);

// What the option parser cannot see and no model file can make right; "" when the command line is valid.
// `overrides` receives those of the model file: --set, and the options that are short for one.
[[nodiscard]] std::string wrong_command(const CompilerArguments& arguments, std::vector<Override>& overrides);

// Where the artifact (or IR, or text) goes; "-" is standard output.
std::string output_path(const CompilerArguments& arguments);

}  // namespace gacc
