#include "runtime/plugin.h"

#include <dlfcn.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <filesystem>

namespace gacc {
namespace {

std::string& home() {
  static std::string folder = executable_folder();
  return folder;
}

}  // namespace

void set_plugin_home(const std::string& folder) { home() = folder; }

Result<std::string> find_plugin(const Plugin& plugin) {
  // In a build folder; of a program and of a library, as installed.
  for (const char* place : {"/", "/../lib/gacc/", "/gacc/", "/../gacc/"}) {
    std::string path = home() + place + std::string(plugin.file);
    if (access(path.c_str(), F_OK) == 0) return path;
  }
  if (home().find("/gacc/tree/") != std::string::npos)  // as scripts/wheel lays out a wheel
    return Status::error("{} {} is missing: this wheel was made of a build without it", plugin.what,
                         plugin.file);
  const bool mpi = plugin.package == "gacc-mpi";
  return Status::error(
      "{} {} is missing: it belongs into {} or {}/../lib/gacc (Debian package {}{})", plugin.what,
      plugin.file, home(), home(), plugin.package,
      mpi ? "; a build makes it where it finds libopenmpi-dev: install that, and build from the "
            "start"
          : "");
}

Result<LoadedPlugin> load_plugin(const Plugin& plugin, const char* entry, int flags) {
  const std::string path = GACC_TRY(find_plugin(plugin));
  void* library = dlopen(path.c_str(), RTLD_NOW | flags);
  if (library == nullptr) return Status::error("cannot load {} {}: {}", plugin.what, path, dlerror());
  return LoadedPlugin{path, dlsym(library, entry)};
}

Status LoadedPlugin::outdated() const {
  return Status::error("{} was built for another version of gacc: rebuild or reinstall it", path);
}

std::string executable_path() {
  std::error_code error;
  std::filesystem::path file = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {  // a root without /proc: how the program was called
    const auto called = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    file = std::filesystem::canonical(called != nullptr ? called : "", error);
  }
  return error ? "" : file.string();
}

std::string host_name() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

std::string executable_folder() {
  const std::string path = executable_path();
  return path.empty() ? "." : std::filesystem::path(path).parent_path().string();
}

}  // namespace gacc
