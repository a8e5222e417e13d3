// Reading a command line: what the option parser says of a wrong one, in this project's words.
#pragma once
#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gacc {

// Options that people look for in the wrong place, and where it is.
using Elsewhere = std::vector<std::pair<std::string_view, std::string_view>>;

// Nothing when the program goes on. Else the exit status, 0 after --help and --version, which are printed, or
// 2, and then `wrong` says why.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, const Elsewhere& elsewhere,
                                      std::string& wrong);

}  // namespace gacc
