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
// A plug-in in this process, which stays until the process ends: its code must outlive every object that it made.
struct LoadedPlugin {
  std::string path;
  void* entry = nullptr;  // the function that was asked for; null where it has none
  // The error where it has none, or says that its interface is another.
  Status outdated() const;
};
// Loads it with more flags of dlopen.
Result<LoadedPlugin> load_plugin(const Plugin& plugin, const char* entry, int flags);
// Sets the folder to look from in place of the executable's: a library's own. Call it before anything is looked for.
void set_plugin_home(const std::string& folder);

// The running executable, and its folder.
std::string executable_path();
std::string executable_folder();
// The name of the machine.
std::string host_name();

}  // namespace gacc
