#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdlib>
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
  if (!word.starts_with('-')) {
    const bool sets = word.find('=') != word.npos && app.get_option_no_throw("--set") != nullptr;
    constexpr std::string_view kUnits[] = {"GiB", "MiB", "KiB", "GB", "MB"};
    const bool unit = std::ranges::find(kUnits, word) != std::end(kUnits);
    return fmt::format("nothing takes the argument {}{}", in_quotes(word),
                       sets   ? fmt::format(": each has its own --set: --set {}", word)
                       : unit ? fmt::format(": a size is one word, as 6{}", word)
                              : "");
  }
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

// The first option that was given another one's name for its value, as `--report --plan` does.
std::string option_as_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& value : option->results())
      if (value.starts_with("--") && app.get_option_no_throw(value) != nullptr)
        return fmt::format("{} lacks its value: {} is an option", option->get_name(), value);
  for (const CLI::App* command : app.get_subcommands())
    if (std::string wrong = option_as_value(*command); !wrong.empty()) return wrong;
  return "";
}

// Says which commands there are, where `word` is none.
std::string which_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  const std::string list = fmt::format("{}", fmt::join(names, " or "));
  if (word.empty() || word.starts_with('-')) return fmt::format("the first word is a command: {}", list);
  return fmt::format("there is no command {}; it is {}{}", word, list, hint(word, names));
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

// An option as --help shows it: "--data SPEC", and its sentence.
struct Entry {
  std::string name, says;
};

Entry entry_of(const Json& option) {
  std::string name = fmt::format("{}", fmt::join(option["names"].get<std::vector<std::string>>(), ", "));
  if (name.empty()) name = option["positional"];
  if (const std::string value = option["value"]; !value.empty() && !option["names"].empty())
    name += " " + value;
  std::string says = option["help"];
  std::ranges::replace(says, '\n', ' ');
  return {std::move(name), std::move(says)};
}

// A first sentence in so many columns.
std::string brief_of(std::string_view says, size_t columns) {
  std::string_view part = says.substr(0, says.find_first_of(";:("));
  while (part.size() > columns && part.rfind(' ') != part.npos) part = part.substr(0, part.rfind(' '));
  while (part.ends_with(' ') || part.ends_with(',')) part.remove_suffix(1);
  return std::string(part);
}

constexpr size_t kNameColumns = 28;  // before what is said of an option

// A name that is too long for its column stands in a line of its own.
std::string entry_text(const Entry& entry, size_t columns, bool brief) {
  const std::string name = "  " + entry.name;
  const size_t left = std::max<size_t>(columns, kNameColumns + 20) - kNameColumns;
  const bool fits = name.size() + 2 <= kNameColumns;
  if (brief)
    return fmt::format(
        "{:<{}}  {}\n", name, kNameColumns - 2,
        brief_of(entry.says, fits ? left : left - std::min(left, name.size() + 2 - kNameColumns)));
  const std::string lead =
      fits ? fmt::format("{:<{}}", name, kNameColumns) : fmt::format("{}\n{:{}}", name, "", kNameColumns);
  const std::string says = wrapped(std::string(kNameColumns, ' ') + entry.says, columns, kNameColumns);
  return lead + says.substr(std::min(says.size(), kNameColumns)) + "\n";
}

// The text of --help, or, in `brief`, of -h: a line for each option.
std::string help_text(const CLI::App& app, const std::string& called, bool brief) {
  const size_t columns = terminal_columns(80);
  const bool bold = isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  const auto heading = [&](std::string_view text) {
    return bold ? fmt::format("\n\x1b[1m{}:\x1b[0m\n", text) : fmt::format("\n{}:\n", text);
  };
  const Json table = option_table(app);
  std::string places;
  for (const Json& group : table["groups"])
    for (const Json& option : group["options"])
      if (const std::string name = option["positional"]; !name.empty() && option["names"].empty())
        places += option["required"] ? fmt::format(" {}", name) : fmt::format(" [{}]", name);
  if (!table["commands"].empty()) places += " COMMAND";
  std::string text = wrapped(app.get_description(), columns, 0) + "\n";
  text += fmt::format("Usage: {} [OPTIONS]{}\n", called, places);
  for (const Json& group : table["groups"]) {
    std::string arguments, options;
    for (const Json& option : group["options"])
      (option["names"].empty() ? arguments : options) += entry_text(entry_of(option), columns, brief);
    if (!arguments.empty()) text += heading("Arguments") + arguments;
    if (!options.empty()) text += heading(group["name"].get<std::string>()) + options;
  }
  if (!table["commands"].empty()) text += heading("Commands");
  for (const Json& command : table["commands"])
    text += entry_text({command["name"], command["description"]}, columns, brief);
  if (brief) return text + fmt::format("\n{} --help says more\n", called);
  std::istringstream footer(app.get_footer());
  for (std::string line; std::getline(footer, line);) {
    const bool title = line.ends_with(':') && !line.starts_with(' ');
    text += title ? heading(line.substr(0, line.size() - 1)) : line.empty() ? "" : line + "\n";
  }
  return text;
}

// `brief`: set where -h was given.
void add_help(CLI::App& app, bool& brief) {
  app.set_help_flag();
  app.add_flag_callback(
      "-h",
      [&brief] {
        brief = true;
        throw CLI::CallForHelp();
      },
      "list the options, one line each");
  app.set_help_flag("--help", "explain the options");
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
  bool brief = false;
  add_help(app, brief);
  for (CLI::App* command : app.get_subcommands({})) add_help(*command, brief);
  if (argc == 2 && std::string_view(argv[1]) == "--dump-options")
    return exit_status(write_output("-", option_table(app).dump(1) + "\n"));
  std::string wrong;
  try {
    app.parse(argc, argv);
    wrong = option_as_value(app);
    if (const std::vector<std::string> rest = app.remaining(); wrong.empty() && !rest.empty())
      wrong = unknown(app, rest.front(), elsewhere);
    if (wrong.empty()) wrong = empty_value(app);
  } catch (const CLI::CallForHelp&) {
    const CLI::App* of = &app;
    std::string called = program;
    for (std::vector<CLI::App*> parsed = app.get_subcommands(); !parsed.empty();
         parsed = of->get_subcommands()) {
      of = parsed.front();
      called += " " + of->get_name();
    }
    return exit_status(write_output("-", help_text(*of, called, brief)));
  } catch (const CLI::Success& asked) {
    std::ostringstream text;
    (void)app.exit(asked, text, text);
    return exit_status(write_output("-", text.str()));
  } catch (const CLI::ArgumentMismatch& error) {
    wrong = mismatch(error.what());
  } catch (const CLI::RequiredError& error) {
    const bool none = app.get_require_subcommand_min() > 0 && app.get_subcommands().empty();
    wrong = none ? which_command(app, argc > 1 ? argv[1] : "") : refused(error.what());
  } catch (const CLI::ParseError& error) {
    wrong = refused(error.what());
  }
  if (wrong.empty()) return std::nullopt;
  return fail(kWrongCommand, fmt::format("{}\n{} --help lists the options", wrong, program));
}

size_t terminal_columns(size_t elsewhere) {
  constexpr size_t kLeast = 20, kMost = 1000;
  winsize size{};
  if (const char* said = std::getenv("COLUMNS"); said != nullptr && number_of<size_t>(said))
    return std::clamp(*number_of<size_t>(said), kLeast, kMost);
  if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return std::clamp<size_t>(size.ws_col, kLeast, kMost);
  return elsewhere;
}

std::string wrapped(std::string_view text, size_t columns, size_t indent) {
  std::string all, line;
  size_t width = 0;  // of the line
  const auto end_line = [&] { all.append(line).append("\n"), line.clear(), width = 0; };
  const auto width_of = [](std::string_view word) {
    return static_cast<size_t>(std::ranges::count_if(word, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  while (!text.empty()) {
    if (text.front() == '\n') {
      end_line();
      text.remove_prefix(1);
      continue;
    }
    // Blanks, and the word behind them.
    const size_t word = std::min(text.find_first_not_of(' '), text.size());
    const size_t end = std::min(text.find_first_of(" \n", word), text.size());
    const std::string_view piece = text.substr(0, end);
    if (width > indent && width + width_of(piece) > columns) {
      end_line();
      line.assign(indent, ' ').append(piece.substr(word));
      width = indent + width_of(piece.substr(word));
    } else {
      line.append(piece);
      width += width_of(piece);
    }
    text.remove_prefix(end);
  }
  return all.append(line);
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
