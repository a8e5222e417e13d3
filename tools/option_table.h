// A program's options as data, for who writes about them: tools/commands.py makes of it the man pages, the
// completion of bash and zsh, and docs/commands.md.
#pragma once
#include <CLI/App.hpp>
#include <nlohmann/json.hpp>

namespace gacc {

// name, version, description, footer; groups: [{name, options: [...]}]; commands: the tables of subcommands.
// An option: names (a positional has none but `positional`), value ("" for a flag; words in lower case with | between
// them are what may be written, those in upper case say its kind), help, required, repeats.
nlohmann::ordered_json option_table(const CLI::App& app);

}  // namespace gacc
