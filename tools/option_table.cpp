#include "tools/option_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "runtime/atomic_file.h"

namespace gacc {

OptionForm any(std::string type) { return {std::move(type), std::nullopt, {}}; }

OptionForm count(int64_t low, int64_t high) { return {"N", whole_number(low, high), {}}; }

OptionForm number() {
  const auto check = [](const std::string& text) -> std::string {
    const auto value = number_of<double>(text);
    const auto used = static_cast<float>(value.value_or(-1));
    if (value == 0.0 || (used > 0 && std::isfinite(used))) return "";
    return fmt::format("\"{}\" is neither 0 nor a number from 1.5e-45 to 3.4e38", text);
  };
  return {"X", CLI::Validator(check, ""), {}};
}

OptionForm share() {
  const auto check = [](const std::string& text) -> std::string {
    const double value = number_of<double>(text).value_or(0);
    return value > 0 && value <= 1 ? "" : fmt::format("\"{}\" is not a number above 0, up to 1", text);
  };
  return {"X", CLI::Validator(check, ""), {}};
}

OptionForm words(const std::vector<std::string>& list) { return {"NAME", CLI::IsMember(list), {}}; }

OptionForm path(std::string type, OptionFiles files) {
  return {std::move(type), std::nullopt, std::move(files)};
}

OptionFiles reads(FilesOf of) { return {FileUse::reads, of, "", {}}; }
OptionFiles writes(FilesOf of, std::vector<std::string_view> endings, std::string_view in_place_of) {
  return {FileUse::writes, of, in_place_of, std::move(endings)};
}
OptionFiles updates(FilesOf of) { return {FileUse::updates, of, "", {}}; }

std::vector<std::string> the_file(const std::string& path) { return {path}; }
std::vector<std::string> the_source(const std::string& path) { return {source_of(path)}; }
std::vector<std::string> the_target(const std::string& path) { return {target_of(path)}; }

void add_options(CLI::App& app, const OptionRows& rows) {
  for (const OptionRow& row : rows) {
    const std::string name(row.name), help(row.help);
    CLI::Option* const option = std::visit(
        [&]<class T>(T* value) -> CLI::Option* {
          if constexpr (std::is_same_v<T, bool>) return app.add_flag(name, *value, help);
          CLI::Option* const added = app.add_option(name, *value, help)->type_name(row.form.type);
          if constexpr (std::is_same_v<T, std::vector<std::string>>) added->allow_extra_args(false);
          return added;
        },
        row.target);
    if (row.form.check) option->transform(*row.form.check);
    if (!row.form.unsaid.empty()) option->expected(0, 1)->default_str(std::string(row.form.unsaid));
    if (row.group.empty())
      option->required();
    else
      option->group(std::string(row.group));
  }
}

bool is_given(const CLI::App& app, std::string_view option) {
  const size_t space = option.find(' ');
  const CLI::Option& found = *app.get_option(std::string(option.substr(0, space)));
  if (found.count() == 0) return false;
  if (space != option.npos) return found.as<std::string>() == option.substr(space + 1);
  return found.get_items_expected_max() > 0 || found.as<bool>();
}

std::string wrong_needs(const CLI::App& app, const OptionRows& rows) {
  for (const OptionRow& row : rows) {
    const auto given = [&](std::string_view option) { return is_given(app, option); };
    if (!row.needs.empty() && given(row.name) && std::ranges::none_of(row.needs, given))
      return fmt::format("{} needs {}", row.name, fmt::join(row.needs, " or "));
  }
  return "";
}

std::string wrong_excludes(const CLI::App& app, const OptionRows& rows) {
  for (const OptionRow& row : rows)
    for (const Excluded& excluded : row.excludes)
      for (const std::string_view option : excluded.options)
        if (is_given(app, row.name) && is_given(app, option))
          return fmt::format("{} excludes {}: {}", row.name, option, excluded.because);
  return "";
}

std::string wrong_files(const std::vector<FileOption>& files, const OptionRows& rows) {
  if (std::string wrong = wrong_outputs(files); !wrong.empty()) return wrong;
  for (const OptionRow& row : rows)
    if (row.writes())
      if (std::string wrong =
              wrong_ending(row.name, *std::get<std::string*>(row.target), row.form.files.endings);
          !wrong.empty())
        return wrong;
  return "";
}

std::vector<FileOption> file_options(const OptionRows& rows) {
  std::vector<FileOption> options;
  for (const OptionRow& row : rows)
    if (const OptionFiles& files = row.form.files; files.use)
      options.push_back({row.name, *files.use, files.of(*std::get<std::string*>(row.target)),
                         files.in_place_of, files.folder});
  return options;
}

bool is_empty(const OptionTarget& target) {
  return std::visit(
      []<class T>(const T* value) {
        if constexpr (requires { value->empty(); })
          return value->empty();
        else if constexpr (std::is_arithmetic_v<T>)
          return *value == T();
        else
          return !value->has_value();
      },
      target);
}

std::string value_text(const OptionTarget& target) {
  if (is_empty(target)) return "not given";
  return std::visit(
      []<class T>(const T* value) {
        if constexpr (requires { value->has_value(); })
          return fmt::format("{}", **value);
        else
          return fmt::format("{}", *value);
      },
      target);
}

}  // namespace gacc
