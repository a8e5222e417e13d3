// Reading a command line, alike in every program: help, version, the option table, and what is said of
// a wrong one.
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

// Nothing when the program goes on. Else the exit status, and everything is printed: 0 after --help,
// --version and --dump-options (option_table.h), 2 for a wrong command line.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv,
                                                    const Elsewhere& elsewhere = {});

enum Exit { kDone = 0, kFailed = 1, kWrongCommand = 2, kBug = 3, kInterrupted = 130 };

// Says "PROGRAM: error: TEXT" on standard error, of the program that parse_command_line was called for; the status.
int fail(Exit status, std::string_view text);

}  // namespace gacc
