#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>

#include "runtime/data/text.h"
#include "runtime/standard_streams.h"
#include "tools/option_table.h"

namespace gacc {
namespace {

std::string program = "gacc";

// The first word that no option takes: an option that is not there, or one value too many.
std::string unknown(const CLI::App& app, const std::string& word, const Elsewhere& elsewhere) {
  if (!word.starts_with('-')) return fmt::format("nothing takes the argument {}", gacc::quoted(word));
  const std::string name = word.substr(0, word.find('='));
  for (const auto& [option, where] : elsewhere)
    if (option == name) return fmt::format("there is no {}: {}", name, where);
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

// The first file, folder or data set that was given as "", as scripts do where a variable is not set.
std::string empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool names =
        std::ranges::any_of(std::initializer_list<std::string_view>{"FILE", "FOLDER", "SPEC"},
                            [&](std::string_view word) { return type.find(word) != type.npos; });
    if (names && std::ranges::count(option->results(), "") > 0)
      return fmt::format("{} is empty", option->get_name());
  }
  for (const CLI::App* command : app.get_subcommands())
    if (std::string wrong = empty_value(*command); !wrong.empty()) return wrong;
  return "";
}

}  // namespace

int fail(Exit status, std::string_view text) {
  print_stderr("{}: error: {}\n", program, text);
  return status;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, const Elsewhere& elsewhere) {
  program = app.get_name();
  app.allow_extras();
  app.get_formatter()->column_width(28);
  if (argc == 2 && std::string_view(argv[1]) == "--dump-options") {
    std::cout << option_table(app).dump(1) << std::endl;
    return 0;
  }
  std::string wrong;
  try {
    app.parse(argc, argv);
    if (const std::vector<std::string> rest = app.remaining(); !rest.empty())
      wrong = unknown(app, rest.front(), elsewhere);
    else
      wrong = empty_value(app);
  } catch (const CLI::Success& asked) {
    return app.exit(asked, std::cout, std::cout);
  } catch (const CLI::ArgumentMismatch& error) {
    wrong = mismatch(error.what());
  } catch (const CLI::ParseError& error) {
    wrong = refused(error.what());
  }
  if (wrong.empty()) return std::nullopt;
  return fail(kWrongCommand, fmt::format("{}\n{} --help lists the options", wrong, program));
}

}  // namespace gacc
