// Finds plug-ins: they lie beside the executable (a build folder) or in ../lib/gacc (an installation, wherever it
// is).
#pragma once
#include <string>
#include <string_view>

#include "runtime/status.h"

namespace gacc {

struct Plugin {
  std::string_view what, file, package;  // package: that of Debian
};
// Where it is, or that it is missing.
Result<std::string> find_plugin(const Plugin& plugin);
// Where to look from, instead of the executable's folder: a library's own. Before anything is looked for.
void set_plugin_home(const std::string& folder);

// The running executable, and its folder.
std::string executable_path();
std::string executable_folder();

}  // namespace gacc
