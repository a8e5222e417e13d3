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
// Returns the plug-in's path, or says that it is missing.
Result<std::string> find_plugin(const Plugin& plugin);
// Sets the folder to look from in place of the executable's: a library's own. Call it before anything is looked for.
void set_plugin_home(const std::string& folder);

// The running executable, and its folder.
std::string executable_path();
std::string executable_folder();

}  // namespace gacc
