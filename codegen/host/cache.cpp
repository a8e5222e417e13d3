// See cache.h. An entry is one line with length and CRC-32, then the object's bytes.
#include "codegen/host/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "runtime/atomic_file.h"

namespace gacc::host {

namespace fs = std::filesystem;

namespace {

std::string header(std::string_view object) {
  return fmt::format("gacc object 1 bytes={} crc32={:08x}\n", object.size(), crc32_of(object));
}

// Code is run from here: the folder must be the user's own.
bool usable(const std::string& folder) {
  struct stat info {};
  return stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

Cache Cache::open() {
  const char* setting = std::getenv("GACC_CACHE");
  if (setting != nullptr && std::string_view(setting) == "off") return Cache("");
  const char* base = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string folder;
  if (base != nullptr && *base == '/')
    folder = std::string(base) + "/gacc";
  else if (home != nullptr && *home == '/')
    folder = std::string(home) + "/.cache/gacc";
  std::error_code error;
  fs::create_directories(fs::path(folder).parent_path(), error);
  mkdir(folder.c_str(), 0700);
  return Cache(usable(folder) ? folder : "");
}

std::optional<std::string> Cache::load(const std::string& key) const {
  if (!enabled()) return std::nullopt;
  const Result<std::string> bytes = read_file(path(key), kBytes);
  if (!bytes) return std::nullopt;
  const size_t end = bytes->find('\n');
  if (end == std::string::npos) return std::nullopt;
  const std::string_view object = std::string_view(*bytes).substr(end + 1);
  if (header(object) != std::string_view(*bytes).substr(0, end + 1)) return std::nullopt;
  utimensat(AT_FDCWD, path(key).c_str(), nullptr, 0);  // its age is counted from its last use
  return std::string(object);
}

void Cache::store(const std::string& key, std::string_view object) const {
  if (!enabled() || static_cast<int64_t>(object.size()) > kBytes) return;
  if (write_file_atomically(path(key), header(object) + std::string(object))) trim();
}

void Cache::trim() const {
  struct Entry {
    fs::file_time_type time;
    std::string path;
    int64_t bytes;
  };
  std::vector<Entry> entries;
  std::error_code error;
  for (fs::directory_iterator file(folder_, error), end; !error && file != end; file.increment(error)) {
    std::error_code gone;  // another process may be trimming as well
    if (file->path().extension() != ".o") continue;
    const fs::file_time_type time = file->last_write_time(gone);
    const auto bytes = gone ? 0 : static_cast<int64_t>(file->file_size(gone));
    if (!gone) entries.push_back({time, file->path().string(), bytes});
  }
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return a.time != b.time ? a.time > b.time : a.path < b.path;
  });
  int64_t kept = 0, bytes = 0;
  for (const Entry& entry : entries) {
    bytes += entry.bytes;
    if (++kept > kEntries || bytes > kBytes) unlink(entry.path.c_str());
  }
}

}  // namespace gacc::host
