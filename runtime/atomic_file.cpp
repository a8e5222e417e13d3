// A symbolic link is followed, so that its target is replaced and the link stays. What is no regular file
// (/dev/full, a pipe, /dev/stdout, which may be a redirected file) cannot be replaced by renaming: that is
// written in place, with the same errors.
#include "runtime/atomic_file.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "runtime/not_downloaded.h"
#include "runtime/temporaries.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr std::string_view kPrefix = ".gacc-", kEnding = ".tmp", kFolderEnding = ".folder.tmp";

// Locks what a run has made under a temporary name; the system lets go of it when the process ends, however it does.
// False where a sweep has removed it before it was held. (File systems without locks are never swept.)
bool hold(int fd) {
  while (flock(fd, LOCK_EX) != 0 && errno == EINTR) continue;
  struct stat info = {};
  return fstat(fd, &info) != 0 || info.st_nlink > 0;
}

// The descriptors that hold this process's temporary folders, by their names.
class HeldFolders {
 public:
  void add(const std::string& name, int fd) {
    const std::lock_guard lock(mutex_);
    held_[name] = fd;
  }
  void release(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (const auto found = held_.extract(name); !found.empty()) close(found.mapped());
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> held_;
};
HeldFolders& held_folders() {
  static HeldFolders folders;
  return folders;
}

// Makes a file or folder of a new name beside `path`; `make` gives its descriptor or -1, with errno, where it cannot.
// The name, held by the descriptor `fd`; an error calls the path as the user did, `given`.
template <class Make>
Result<std::string> make_beside(const std::string& path, const std::string& given, std::string_view ending,
                                int& fd, const Make& make) {
  static std::atomic<int> number = 0;
  const std::string folder = folder_of(path);
  sweep_temporaries(folder);
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = fmt::format("{}/{}{}-{}{}", folder, kPrefix, getpid(), number++, ending);
    fd = make(name.c_str());
    if (fd >= 0 && hold(fd)) return name;
    if (fd >= 0) {
      close(std::exchange(fd, -1));
      continue;
    }
    if (errno == ENOENT) return Status::error("cannot write {}: there is no folder {}", given, folder);
    if (errno != EEXIST) break;  // else it is left by a process of that number that was killed
  }
  return cannot_write(given, errno);
}

Result<std::string> read_descriptor(int fd, std::string_view path, int64_t limit) {
  struct stat info = {};
  if (fd < 0 || fstat(fd, &info) != 0) return cannot_read(path, errno);
  if (S_ISDIR(info.st_mode)) return Status::error("cannot read {}: it is a folder", path);
  const bool streamed = !S_ISREG(info.st_mode) && limit > kMostStreamed;
  if (streamed) limit = kMostStreamed;
  auto too_large = [&] {
    return Status::error("cannot read {}: it has more than {} bytes{}", path, limit,
                         streamed ? ", the limit for what is no regular file" : "");
  };
  if (S_ISREG(info.st_mode) && info.st_size > limit) return too_large();
  // One byte more than a regular file has: then its end shows without another round.
  size_t size = 0;
  std::string bytes(
      S_ISREG(info.st_mode) && info.st_size > 0 ? static_cast<size_t>(info.st_size) + 1 : 1 << 16, '\0');
  while (true) {
    if (const auto most = static_cast<size_t>(limit); size == bytes.size())
      bytes.resize(size < most / 2 ? size * 2 : most + 1);
    const ssize_t got = read(fd, bytes.data() + size, std::min<size_t>(bytes.size() - size, size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_read(path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
    if (static_cast<int64_t>(size) > limit) return too_large();
  }
  bytes.resize(size);
  return bytes;
}

// Endings of formats: PyTorch's, which it reads otherwise too, and others.
constexpr std::string_view kTorchEndings[] = {".pt", ".pth", ".bin", ".ckpt"};
constexpr std::string_view kOtherFormats[] = {
    ".safetensors", ".npy",  ".npz", ".csv",     ".tsv",  ".json",    ".jsonl", ".txt",  ".h5",
    ".hdf5",        ".onnx", ".pkl", ".parquet", ".gguf", ".msgpack", ".ptx",   ".toml", ".gir",
    ".gz",          ".zip",  ".bz2", ".xz",      ".zst",  ".pdf",     ".png",   ".svg",  ".html"};

}  // namespace

std::string system_reason(int error) { return std::generic_category().message(error); }

Status cannot_read(std::string_view path, int error) {
  return Status::error("cannot read {}: {}", path, system_reason(error));
}
Status cannot_write(std::string_view path, int error) {
  return Status::error("cannot write {}: {}", path, system_reason(error));
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string file_in(const std::string& folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
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

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

uint32_t crc32_of(std::string_view bytes, uint32_t before) {
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::open(const std::string& path) {
  if (fd_ >= 0) return Status::error("cannot write {}: {} is still open", path, path_);
  if (path.empty()) return Status::error("cannot write a file without a name");
  path_ = path;
  const bool in_place = follow_links(path_);
  struct stat old = {};
  const bool exists = stat(path_.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) return Status::error("cannot write {}: it is a folder", path);
  if (exists && (in_place || !S_ISREG(old.st_mode))) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    return fd_ < 0 ? cannot_write(path, errno) : Status();
  }
  if (path_.ends_with('/')) return Status::error("cannot write {}: it names a folder", path);
  // Renaming would replace a file that one may not write.
  if (exists && access(path_.c_str(), W_OK) != 0) return cannot_write(path, errno);
  temporary_ = GACC_TRY(make_beside(path_, path, kEnding, fd_, [](const char* name) {
    return ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  }));
  // The new file is as open or closed to others as the old one.
  if (exists && fchmod(fd_, old.st_mode & 07777) != 0 && errno != EPERM) return cannot_write(path, errno);
  return {};
}

Status AtomicFile::write(std::string_view bytes) {
  if (fd_ < 0) return Status::error("cannot write {}: it is not open", path_);
  return write_all(fd_, bytes) ? Status() : cannot_write(path_, errno);
}

bool is_there(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

std::string free_name(const std::string& name) {
  std::string free = name;
  for (int number = 2; is_there(free); ++number) free = fmt::format("{}.{}", name, number);
  return free;
}

Status AtomicFile::keep_old(const std::string& name) const {
  if (access(path_.c_str(), F_OK) != 0) return {};
  const std::string free = free_name(name);
  if (free != name && rename(name.c_str(), free.c_str()) != 0) return cannot_write(free, errno);
  const bool kept = link(path_.c_str(), name.c_str()) == 0 || rename(path_.c_str(), name.c_str()) == 0;
  return kept ? Status() : cannot_write(name, errno);
}

Status AtomicFile::commit(const std::string& keep) {
  if (fd_ < 0) return Status::error("cannot write {}: it is not open", path_);
  int error = 0;
  if (!temporary_.empty() && fsync(fd_) != 0 && errno != EINVAL && errno != ENOTSUP) error = errno;
  if (close(fd_) != 0 && error == 0 && errno != EINTR) error = errno;
  fd_ = -1;
  if (error != 0) return cannot_write(path_, error);
  if (temporary_.empty()) return {};
  if (!keep.empty()) GACC_TRY(keep_old(keep));
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return cannot_write(path_, errno);
  temporary_.clear();
  sync_folder_of(path_);
  return {};
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
  held_folders().release(temporary_);
}

Status AtomicFolder::check_old() const {
  struct stat old = {};
  if (stat(path_.c_str(), &old) != 0) return {};
  if (!S_ISDIR(old.st_mode)) return Status::error("cannot write the folder {}: it is a file", path_);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || std::ranges::count(own_, name) == 0)
      return Status::error(
          "cannot write the folder {}: {} is in it, and would go with the old folder; name one of its own",
          path_, name);
  }
  return error ? cannot_write("the folder " + path_, error.value()) : Status();
}

Status AtomicFolder::open(const std::string& path, std::span<const std::string_view> own) {
  path_ = path;
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  own_.assign(own.begin(), own.end());
  if (follow_links(path_)) return Status::error("cannot write the folder {}: it is of /proc", path);
  GACC_TRY(check_old());
  int fd = -1;
  temporary_ = GACC_TRY(make_beside(path_, path, kFolderEnding, fd, [](const char* name) {
    return mkdir(name, 0777) == 0 ? ::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  }));
  held_folders().add(temporary_, fd);
  struct stat old = {};
  if (stat(path_.c_str(), &old) == 0) (void)chmod(temporary_.c_str(), old.st_mode & 07777);
  return {};
}

Status AtomicFolder::named(const Status& status) const {
  std::string text(status.text());
  for (size_t at = 0; !temporary_.empty() && (at = text.find(temporary_)) != std::string::npos;)
    text.replace(at, temporary_.size(), path_);
  return status ? status : Status::error("{}", text);
}

Status AtomicFolder::commit() {
  GACC_TRY(check_old());
  sync_folder_of(file(""));
  std::error_code ignored;
  const bool is_new =
      rename(temporary_.c_str(), path_.c_str()) == 0;  // no folder of the name is there, or an empty one
  if (!is_new && errno != ENOTEMPTY && errno != EEXIST) return cannot_write(path_, errno);
  if (!is_new && renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system that cannot exchange: for a moment there is no folder of the name.
    const std::string old = free_name(temporary_ + ".old");
    if (rename(path_.c_str(), old.c_str()) != 0) return cannot_write(path_, errno);
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      (void)rename(old.c_str(), path_.c_str());
      return cannot_write(path_, error);
    }
    held_folders().release(temporary_);
    temporary_ = old;
  }
  if (!is_new) std::filesystem::remove_all(temporary_, ignored);  // what was the old folder
  held_folders().release(temporary_);
  temporary_.clear();
  sync_folder_of(path_);
  return {};
}

void sweep_temporaries(const std::string& folder) {
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kEnding)) continue;
    const int fd = ::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    std::error_code ignored;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry->path(), ignored);
    close(fd);
  }
}

void sync_folder_of(const std::string& path) {
  const int folder = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  (void)fsync(folder);
  close(folder);
}

std::string wrong_ending(std::string_view option, const std::string& path,
                         std::span<const std::string_view> own) {
  if (own.empty()) return "";
  std::filesystem::path file = path;
  const std::string ending = lower_case(file.extension().string());
  const auto in = [&](const auto& list) { return std::ranges::find(list, ending) != std::end(list); };
  if (in(own) || !(in(kTorchEndings) || in(kOtherFormats))) return "";
  const bool torch = in(kTorchEndings) && own.front() == ".safetensors";
  return fmt::format("{} {}: no {} files are written, but {}: {}{}", option, path, ending.substr(1),
                     fmt::join(own, ", "), file.replace_extension(own.front()).string(),
                     torch ? " (PyTorch reads it by safetensors.torch.load_file)" : "");
}

std::string not_downloaded(const std::string& path) {
  const size_t slash = path.find('/');
  const auto plain = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '~' &&
           part.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
               part.npos;
  };
  std::error_code none;
  if (slash == path.npos || !plain(path.substr(0, slash)) || !plain(path.substr(slash + 1))) return "";
  const std::string ending = lower_case(std::filesystem::path(path).extension().string());
  if (std::ranges::find(kOtherFormats, ending) != std::end(kOtherFormats) ||
      std::ranges::find(kTorchEndings, ending) != std::end(kTorchEndings) ||
      std::filesystem::exists(path.substr(0, slash), none))
    return "";
  return fmt::format(
      "; nothing is downloaded: `hf download {} --local-dir {}` does that, and then it is the folder {}",
      path, path.substr(slash + 1), path.substr(slash + 1));
}

Status check_writable(const std::string& path) {
  if (path.empty()) return {};
  const std::optional<FileIdentity> file = identity_of(path);
  return file && file->pipe ? Status() : AtomicFile().open(path);
}

Status write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file;
  GACC_TRY(file.open(path));
  GACC_TRY(file.write(bytes));
  return file.commit();
}

Status write_output(const std::string& path, std::string_view bytes) {
  if (path != "-") return write_file_atomically(path, bytes);
  const bool whole = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size();
  if (std::fflush(stdout) == 0 && whole) return {};
  return cannot_write("standard output", errno);
}

Result<std::string> read_file(const std::string& path, int64_t limit) {
  const struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  return read_descriptor(file.fd, path, limit);
}

Result<std::string> read_input(const std::string& path, int64_t limit) {
  return path == "-" ? read_descriptor(STDIN_FILENO, "standard input", limit) : read_file(path, limit);
}

namespace {

// Returns what a file of another kind is and where it belongs, by its ending; "" where it may be a model file.
std::string what_is_no_model(const std::string& path) {
  const std::string ending = lower_case(std::filesystem::path(path).extension().string());
  if (ending == ".safetensors" || std::ranges::find(kTorchEndings, ending) != std::end(kTorchEndings))
    return fmt::format(
        "{} holds weights: give the folder of a published model, which has a config.json beside them, or a "
        "model file (TOML); gacc-exec --load {} takes the weights",
        path, path);
  constexpr std::string_view kData[] = {".csv", ".tsv", ".npy", ".npz", ".jsonl", ".parquet"};
  if (std::ranges::find(kData, ending) == std::end(kData)) return "";
  return fmt::format("{} holds data, which gacc-exec --data takes; a model file is TOML", path);
}

}  // namespace

Result<std::string> read_model(const std::string& path) {
  std::error_code ignored;
  if (const std::string other = what_is_no_model(path);
      !other.empty() && std::filesystem::exists(path, ignored))
    return Status::error("{}", other);
  Result<std::string> text = read_input(path, int64_t{64} << 20);
  if (text || std::filesystem::exists(path, ignored)) return text;
  return Status::error("{}{}", text.status().text(), not_downloaded(path));
}

}  // namespace gacc
