// See file_identity.h.
#include "runtime/file_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace gacc {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

bool follow_links(std::string& path) {
  for (int i = 0; i < 40; ++i) {
    char folder[PATH_MAX];
    if (realpath(folder_of(path).c_str(), folder) && std::string_view(folder).starts_with("/proc/"))
      return true;
    char target[PATH_MAX];
    const ssize_t length = readlink(path.c_str(), target, sizeof target);
    if (length < 0) return false;
    const std::string next(target, static_cast<size_t>(length));
    path = next.starts_with('/') ? next : folder_of(path) + "/" + next;
  }
  return false;
}

std::optional<FileIdentity> identity_of(std::string path) {
  struct stat info {};
  std::filesystem::path missing;  // what is not there of the path, from the first folder that is
  while (stat(path.c_str(), &info) != 0) {
    follow_links(path);
    if (stat(path.c_str(), &info) == 0) break;
    const std::string folder = folder_of(path);
    if (folder == path) return std::nullopt;
    const std::filesystem::path name = path.substr(path.rfind('/') + 1);
    missing = missing.empty() ? name : name / missing;
    path = folder;
  }
  // A folder that is not there yet may be made before the file is written: its ".." leads back.
  if (const auto direct = missing.lexically_normal(); direct != missing)
    return identity_of(path + "/" + direct.string());
  if (S_ISCHR(info.st_mode) || S_ISSOCK(info.st_mode)) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino, missing.string(), S_ISFIFO(info.st_mode)};
}

}  // namespace gacc
