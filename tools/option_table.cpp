// See option_table.h.
#include "tools/option_table.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <string>

namespace gacc {
namespace {

using Json = nlohmann::ordered_json;

// CLI11 writes "TEXT:{ptx,ir}" for a choice among words, here ptx|ir, and "N:INT in [0 - 9]" for a checked
// number, here N.
Json describe(const CLI::Option& option) {
  Json names = Json::array();
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  std::string value = option.get_type_name();
  const size_t open = value.find('{'), close = value.find('}');
  if (open != std::string::npos && close != std::string::npos) {
    value = value.substr(open + 1, close - open - 1);
    std::replace(value.begin(), value.end(), ',', '|');
  } else if (value.find('[') > value.find(':')) {  // not cuda[:N], which is a name of ours
    value.resize(std::min(value.size(), value.find(':')));
  }
  if (option.get_items_expected_max() == 0) value.clear();
  return {{"names", names},
          {"positional", option.get_positional() ? option.get_name(true) : ""},
          {"value", value},
          {"help", option.get_description()},
          {"required", option.get_required()},
          {"repeats", option.get_items_expected_max() > 1}};
}

}  // namespace

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

}  // namespace gacc
