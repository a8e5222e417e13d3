// Reading a command line, alike in every program: help, version, the option table, the files that it names, and
// what is said of a wrong one.
#pragma once
#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/status.h"

namespace gacc {

// Says where an option is that people look for in the wrong place, or "".
using Elsewhere = std::string (*)(const std::string& option);

// Returns the columns of the terminal that standard output goes to; COLUMNS, where that is set; `elsewhere` in a pipe
// or a file.
size_t terminal_columns(size_t elsewhere);
// Breaks lines at blanks, so that none has more columns of UTF-8; a further line of one begins with so many blanks.
std::string wrapped(std::string_view text, size_t columns, size_t indent);

// Called first in main: it holds the standard streams (runtime/standard_streams.h), too.
// Nothing when the program goes on. Else the exit status, and everything is printed: 0 after --help,
// --version and --dump-options (scripts/commands.py reads it), 2 for a wrong command line.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv,
                                                    Elsewhere elsewhere = nullptr);

enum Exit { kDone = 0, kFailed = 1, kWrongCommand = 2, kBug = 3, kInterrupted = 130 };

// Says "PROGRAM: error: TEXT" on standard error, of the program that parse_command_line was called for; the status.
int fail(Exit status, std::string_view text);
// kDone; or kFailed, when it has said the error in the same way.
int exit_status(const Status& status);

// Runs a program. Returns its exit status; where an exception ends it, says that memory is short (kFailed) or that it
// is a bug (kBug).
int run_program(const std::function<int()>& run);

// Reads a number in decimal digits. The option parser's own reading takes 010 for 8, and for a number past the
// largest one the largest.
template <class T>
std::optional<T> number_of(const std::string& text) {
  T value = 0;
  const char *begin = text.data() + text.starts_with('+'), *const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  return error == std::errc{} && rest == end ? std::optional(value) : std::nullopt;
}
// A check, by Option::transform, of a whole number from `low` to `high`.
CLI::Validator whole_number(int64_t low, int64_t high = std::numeric_limits<int64_t>::max());

// The files that a command line names. Each program has one table of its options that read or write files; an
// output that is one of its inputs, or another output, makes the command line wrong.
enum class FileUse { reads, writes, updates };  // updates: reads and writes

struct FileOption {
  std::string_view option;  // as --help calls it
  FileUse use = FileUse::reads;
  std::vector<std::string> files;  // empty names: not given
  std::string_view in_place_of{};  // the option whose file this output may replace
  bool folder = false;             // may be a folder that is replaced as a whole

  bool given() const {
    return std::ranges::any_of(files, [](const std::string& file) { return !file.empty(); });
  }
};

// "-" is standard input or output, for the programs and options that know it.
inline std::string source_of(const std::string& path) { return path == "-" ? "/dev/stdin" : path; }
inline std::string target_of(const std::string& path) { return path == "-" ? "/dev/stdout" : path; }

// "", or which output would replace what, or which inputs would share a pipe. Files are compared, not names:
// links, hard links and other spellings are seen through, also of files that are not there yet.
std::string wrong_outputs(const std::vector<FileOption>& options);

}  // namespace gacc
