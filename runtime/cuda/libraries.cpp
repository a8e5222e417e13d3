#include "runtime/cuda/libraries.h"

#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace gacc::cuda {

namespace {

// Folders as patterns of glob(7), in one variable's folder or, without a variable, from the root.
struct Pattern {
  const char* variable;
  const char* below;
};
constexpr Pattern kFolders[] = {
    {"CUDA_HOME", "/lib64"},
    {"", "/usr/local/cuda*/lib64"},
    {"", "/usr/local/cuda*/targets/x86_64-linux/lib"},
    {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {"", "/usr/local/lib/python3*/dist-packages/nvidia/*/lib"},
    {"", "/usr/lib/python3/dist-packages/nvidia/*/lib"},
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::vector<std::string> places_of(const std::string& name) {
  std::vector<std::string> places = {name};
  if (name.find('/') != std::string::npos) return places;
  const auto add = [&](const std::string& pattern) {
    glob_t found = {};
    if (glob((pattern + "/" + name).c_str(), 0, nullptr, &found) == 0)
      places.insert(places.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
  };
  std::istringstream folders(variable("GACC_CUDA_PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (std::error_code none; std::filesystem::exists(std::filesystem::path(folder) / name, none))
      places.push_back(std::filesystem::path(folder) / name);
  for (const auto& [of, below] : kFolders) {
    const std::string root = variable(of);
    if (*of == '\0' || !root.empty()) add(root + below);
  }
  return places;
}

}  // namespace gacc::cuda
