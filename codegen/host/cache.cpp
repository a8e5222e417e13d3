// An entry is one line with its key, its length and CRC-32, then the object's bytes.
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

std::string header(const std::string& key, std::string_view object) {
  return fmt::format("gacc object 2 key={} bytes={} crc32={:08x}\n", key, object.size(), crc32_of(object));
}

// Code is run from here: what is trusted is of that type, the user's own, and written by nobody else.
bool is_trusted(const struct stat& info, mode_t type) {
  return (info.st_mode & S_IFMT) == type && info.st_uid == geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}
bool is_trusted(const std::string& path, mode_t type) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && is_trusted(info, type);
}

// The bytes of a trusted file; nothing of any other. Neither follows a link nor waits for a pipe.
std::optional<std::string> read_trusted(const std::string& path, int64_t limit) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat info {};
  std::optional<std::string> bytes;
  if (fstat(file, &info) == 0 && is_trusted(info, S_IFREG) && info.st_size <= limit) {
    bytes.emplace(static_cast<size_t>(info.st_size), '\0');
    size_t done = 0;
    for (ssize_t some = 1; some > 0 && done < bytes->size();
         done += static_cast<size_t>(std::max<ssize_t>(some, 0)))
      some = ::read(file, bytes->data() + done, bytes->size() - done);
    bytes->resize(done);
    futimens(file, nullptr);  // its age is counted from its last use
  }
  ::close(file);
  return bytes;
}

// Returns whether a file's name is that of an entry: the 32 digits of a key.
bool is_entry(const fs::path& path) {
  const std::string key = path.stem().string();
  return path.extension() == ".o" && key.size() == 32 &&
         key.find_first_not_of("0123456789abcdef") == std::string::npos;
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
  return Cache(is_trusted(folder, S_IFDIR) ? folder : "");
}

std::optional<std::string> Cache::load(const std::string& key) const {
  if (!enabled()) return std::nullopt;
  const std::optional<std::string> bytes = read_trusted(path(key), kBytes);
  if (!bytes) return std::nullopt;
  const size_t end = bytes->find('\n');
  if (end == std::string::npos) return std::nullopt;
  const std::string_view object = std::string_view(*bytes).substr(end + 1);
  if (header(key, object) != std::string_view(*bytes).substr(0, end + 1)) return std::nullopt;
  return std::string(object);
}

void Cache::store(const std::string& key, std::string_view object) const {
  if (!enabled() || static_cast<int64_t>(object.size()) > kBytes) return;
  const std::string file = path(key);
  if (!is_trusted(file, S_IFREG)) unlink(file.c_str());  // a link or a pipe would be written to
  if (!write_file_atomically(file, header(key, object) + std::string(object))) return;
  chmod(file.c_str(), S_IRUSR | S_IWUSR);
  trim();
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
    if (!is_entry(file->path()) || !is_trusted(file->path().string(), S_IFREG)) continue;
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
