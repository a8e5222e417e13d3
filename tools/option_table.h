// The options of a program as rows of one table: what may be written for a value, which files it names, what it needs
// and what it excludes. The command line is read by that table, and so are --help and the checks of what goes together.
#pragma once
#include <CLI/App.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/command_line.h"

namespace gacc {

// ---- the columns of a table. None has a default, so that a row which lacks one does not compile.

// The member that takes the value.
using OptionTarget =
    std::variant<std::string*, bool*, int*, int64_t*, double*, std::optional<int64_t>*,
                 std::optional<double>*, std::optional<std::string>*, std::vector<std::string>*>;

// The files that the option names.
struct OptionFiles {
  std::optional<FileUse> use;
  std::vector<std::string> (*of)(const std::string& value);
  std::string_view in_place_of;  // the option whose file this output may replace
  // The endings of its format, the first one to be offered; a file that ends as another format does is refused. Empty:
  // any will do.
  std::vector<std::string_view> endings;
  bool folder = false;  // may be a folder that is replaced as a whole
};

// The form of a value: "N", "FILE" for --help, a check that may rewrite it, and the files that it names.
struct OptionForm {
  std::string type;
  std::optional<CLI::Validator> check;
  OptionFiles files;
  std::string_view unsaid{};  // the value of the option alone; "": it needs one
};

// Options that make no sense beside another one, and why.
struct Excluded {
  // By name, or with a value as in "--emit graph".
  std::vector<std::string_view> options;
  std::string_view because;
};

struct OptionRow {
  std::string_view group;  // of --help; "": an argument that must be given
  std::string_view name;
  OptionTarget target;
  OptionForm form;
  std::string_view help;
  std::vector<std::string_view>
      needs;  // it makes no sense without one of these; written as those of Excluded
  std::vector<Excluded> excludes;

  bool writes() const { return form.files.use && *form.files.use != FileUse::reads; }
};
using OptionRows = std::vector<OptionRow>;

// ---- forms of values

OptionForm any(std::string type);  // "" for a flag
OptionForm count(int64_t low, int64_t high = std::numeric_limits<int64_t>::max());
OptionForm number();  // a finite f32 that is not negative
OptionForm share();   // of one, not zero
OptionForm words(const std::vector<std::string>& list);
OptionForm path(std::string type, OptionFiles files);

using FilesOf = std::vector<std::string> (*)(const std::string&);
OptionFiles reads(FilesOf of);
OptionFiles writes(FilesOf of, std::vector<std::string_view> endings = {}, std::string_view in_place_of = "");
OptionFiles updates(FilesOf of);

// The files of a value that is a path; of one that may be "-".
std::vector<std::string> the_file(const std::string& path);
std::vector<std::string> the_source(const std::string& path);
std::vector<std::string> the_target(const std::string& path);

// ---- reading by the table

void add_options(CLI::App& app, const OptionRows& rows);

// Says whether the command line has the option, written as those of Excluded. A flag may be switched off, as
// --quiet=false.
bool is_given(const CLI::App& app, std::string_view option);

// Return what is wrong, or "": an option lacks another one; two do not go together; an output is an input, another
// output, or ends as another format does.
std::string wrong_needs(const CLI::App& app, const OptionRows& rows);
std::string wrong_excludes(const CLI::App& app, const OptionRows& rows);
std::string wrong_files(const std::vector<FileOption>& files, const OptionRows& rows);

std::vector<FileOption> file_options(const OptionRows& rows);

bool is_empty(const OptionTarget& target);
std::string value_text(const OptionTarget& target);  // "not given" of an empty one

}  // namespace gacc
