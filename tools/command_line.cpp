#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "runtime/text.h"

namespace gacc {
namespace {

std::string program = "gacc";

// The first word that no option takes: an option that is not there, or one value too many.
std::string unknown(const CLI::App& app, const std::string& word, Elsewhere elsewhere) {
  if (!word.starts_with('-')) return fmt::format("nothing takes the argument {}", gacc::quoted(word));
  const std::string name = word.substr(0, word.find('='));
  const std::string where = elsewhere != nullptr ? elsewhere(name) : "";
  if (!where.empty()) return fmt::format("there is no {}: {}", name, where);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  return fmt::format("there is no option {}{}", name, hint(name, names));
}

// A value too many or too few: "--data: At Most 1 required but received 2".
std::string mismatch(const std::string& text) {
  const std::string name = text.substr(0, text.find(':'));
  const size_t times = text.rfind(" but received ");
  if (times == text.npos) return fmt::format("{} lacks its value", name);
  return fmt::format("{} is given {} times", name, text.substr(times + 14));
}

// "--emit: foo not in {ptx,ir}" of a list of words; other words as they are.
std::string refused(const std::string& text) {
  const size_t colon = text.find(": "), none = text.find(" not in {");
  if (colon == text.npos || none == text.npos || none < colon || !text.ends_with('}')) return text;
  const std::string name = text.substr(0, colon), word = text.substr(colon + 2, none - colon - 2);
  std::vector<std::string> words;
  std::istringstream list(text.substr(none + 9, text.size() - none - 10));
  for (std::string one; std::getline(list, one, ',');) words.push_back(one);
  const std::string near = hint(word, words), last = words.back();
  words.pop_back();
  return fmt::format("there is no {} {}; it is {} or {}{}", name, word, fmt::join(words, ", "), last, near);
}

// The first option for files, data, sizes or ranks that was given "", as scripts do where a variable is not set.
std::string empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool names = std::ranges::any_of(
        std::initializer_list<std::string_view>{"FILE", "FOLDER", "SPEC", "SIZE", "R|auto"},
        [&](std::string_view word) { return type.find(word) != type.npos; });
    if (names && std::ranges::count(option->results(), "") > 0)
      return fmt::format("{} is empty", option->get_name());
  }
  for (const CLI::App* command : app.get_subcommands())
    if (std::string wrong = empty_value(*command); !wrong.empty()) return wrong;
  return "";
}

using Json = nlohmann::ordered_json;

// CLI11 writes "TEXT:{ptx,ir}" for a choice among words, here ptx|ir.
Json describe(const CLI::Option& option) {
  Json names = Json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  std::string value = option.get_type_name();
  const size_t open = value.find('{'), close = value.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    value = value.substr(open + 1, close - open - 1);
    std::replace(value.begin(), value.end(), ',', '|');
  }
  if (option.get_items_expected_max() == 0) value.clear();
  return {{"names", names},
          {"positional", option.get_positional() ? option.get_name(true) : ""},
          {"value", value},
          {"help", option.get_description()},
          {"required", option.get_required()},
          {"repeats", option.get_items_expected_max() > 1}};
}

// The options as data, for who writes about them: scripts/commands.py makes of it the man pages, the completion
// of bash and zsh, and docs/commands.md.
//
// name, version, description, footer; groups: [{name, options: [...]}]; commands: the tables of subcommands.
// An option: names (a positional has none but `positional`), value ("" for a flag; words in lower case with |
// between them are what may be written, those in upper case say its kind), help, required, repeats.
Json option_table(const CLI::App& app) {
  Json groups = Json::array();
  for (const std::string& group : app.get_groups()) {
    Json options = Json::array();
    for (const CLI::Option* option :
         app.get_options([&](const CLI::Option* each) { return each->get_group() == group; }))
      options.push_back(describe(*option));
    if (!group.empty() && !options.empty()) groups.push_back({{"name", group}, {"options", options}});
  }
  Json commands = Json::array();
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    commands.push_back(option_table(*command));
  return {{"name", app.get_name()},     {"version", app.version()}, {"description", app.get_description()},
          {"footer", app.get_footer()}, {"groups", groups},         {"commands", commands}};
}

struct Named {
  const FileOption* by = nullptr;
  std::string name;
  std::optional<FileIdentity> identity;
};

// Returns whether a path that is to be a file would have to be a folder of the other one.
bool above(const FileIdentity& file, const FileIdentity& other) {
  return !file.missing.empty() && file.device == other.device && file.inode == other.inode &&
         other.missing.starts_with(file.missing + "/");
}

// Returns whether a file lies in a folder that exists and would be written as a whole.
bool holds(const std::string& folder, const std::string& file) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return false;
  const auto whole = std::filesystem::weakly_canonical(folder, error).string();
  return std::filesystem::weakly_canonical(file, error).string().starts_with(whole + "/");
}

}  // namespace

int fail(Exit status, std::string_view text) {
  print_stderr("{}: error: {}\n", program, text);
  return status;
}

int exit_status(const Status& status) { return status ? kDone : fail(kFailed, status.text()); }

int run_program(const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(
        kBug,
        fmt::format("internal error: {}\nThis is a bug in gacc; please report it with the input and the "
                    "command line.",
                    error.what()));
  }
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, Elsewhere elsewhere) {
  hold_standard_streams();
  program = app.get_name();
  app.allow_extras();
  app.add_flag_callback("-V", [&] { throw CLI::CallForVersion(app.version(), 0); })
      ->group("");  // as of other programs
  app.get_formatter()->column_width(28);
  if (argc == 2 && std::string_view(argv[1]) == "--dump-options")
    return exit_status(write_output("-", option_table(app).dump(1) + "\n"));
  std::string wrong;
  try {
    app.parse(argc, argv);
    if (const std::vector<std::string> rest = app.remaining(); !rest.empty())
      wrong = unknown(app, rest.front(), elsewhere);
    else
      wrong = empty_value(app);
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    (void)app.exit(asked, text, text);
    return exit_status(write_output("-", text.str()));
  } catch (const CLI::ArgumentMismatch& error) {
    wrong = mismatch(error.what());
  } catch (const CLI::ParseError& error) {
    wrong = refused(error.what());
  }
  if (wrong.empty()) return std::nullopt;
  return fail(kWrongCommand, fmt::format("{}\n{} --help lists the options", wrong, program));
}

CLI::Validator whole_number(int64_t low, int64_t high) {
  const auto check = [low, high](std::string& text) -> std::string {
    const auto value = number_of<int64_t>(text);
    if (!value || *value < low || *value > high)
      return fmt::format("\"{}\" is not a whole number from {} to {}", text, low, high);
    text = fmt::format("{}", *value);
    return "";
  };
  return {check, ""};
}

std::string wrong_outputs(const std::vector<FileOption>& options) {
  std::vector<Named> files;
  for (const FileOption& option : options)
    for (const std::string& file : option.files)
      if (!file.empty()) files.push_back({&option, file, identity_of(file)});
  for (auto one = files.begin(); one != files.end(); ++one)
    for (auto other = files.begin(); other != one; ++other)
      if (one->identity && one->identity->pipe && one->identity == other->identity &&
          one->by->use == FileUse::reads && other->by->use == FileUse::reads)
        return fmt::format("{} {} and {} {} would read one pipe, whose bytes come once", other->by->option,
                           other->name, one->by->option, one->name);
  for (const Named& output : files)
    for (const Named& other : files) {
      const FileOption &writes = *output.by, &too = *other.by;
      if (!output.identity || !other.identity || &writes == &too || writes.use == FileUse::reads) continue;
      if (above(*output.identity, *other.identity))
        return fmt::format("{} {} cannot be a file and the folder of {} {}", writes.option, output.name,
                           too.option, other.name);
      if (writes.folder && holds(output.name, other.name))
        return fmt::format("{} {} is written as a whole, and {} {} is in that folder", writes.option,
                           output.name, too.option, other.name);
      if (output.identity != other.identity || writes.in_place_of == too.option) continue;
      if (too.use != FileUse::writes)
        return fmt::format("{}: {} would replace the input {} ({})", writes.option, output.name, other.name,
                           too.option);
      if (writes.use == FileUse::writes)
        return fmt::format("{} {} and {} {} name the same file", writes.option, output.name, too.option,
                           other.name);
    }
  return "";
}

}  // namespace gacc
