#include "runtime/data/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/atomic_file.h"

namespace gacc {

Result<SharedFile> FileBytes::open(const std::string& path, int64_t least) {
  struct stat info {};
  const auto large = [&] { return S_ISREG(info.st_mode) && info.st_size > 0 && info.st_size >= least; };
  // A pipe must not be opened twice.
  const bool worth = stat(path.c_str(), &info) == 0 && large();
  if (const int fd = worth ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1; fd >= 0) {
    if (fstat(fd, &info) == 0 && large()) {
      const auto size = static_cast<size_t>(info.st_size);
      void* const start = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
      if (start != MAP_FAILED)
        return SharedFile(new FileBytes(path, fd, info, {static_cast<const char*>(start), size}));
    }
    close(fd);
  }
  return SharedFile(std::make_shared<FileBytes>(GACC_TRY(read_file(path))));
}

FileBytes::~FileBytes() {
  if (!mapped()) return;
  munmap(const_cast<char*>(text_.data()), text_.size());
  close(fd_);
}

Status FileBytes::read(size_t first, std::span<std::byte> to) const {
  if (!mapped()) {
    std::memcpy(to.data(), bytes().subspan(first, to.size()).data(), to.size());
    return {};
  }
  while (!to.empty()) {
    const ssize_t got = pread(fd_, to.data(), to.size(), static_cast<off_t>(first));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return cannot_read(path_, errno);
    if (got == 0) {
      GACC_TRY(unchanged());
      return Status::error("{}: ends at byte {}", path_, first);
    }
    first += static_cast<size_t>(got);
    to = to.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status FileBytes::unchanged() const {
  if (!mapped()) return {};
  struct stat now {};
  if (fstat(fd_, &now) != 0) return cannot_read(path_, errno);
  if (now.st_size != opened_.st_size)
    return Status::error("{}: has {} now, and had {} when the run began; its data must stay as they are",
                         path_, counted(now.st_size, "byte"), opened_.st_size);
  if (now.st_nlink == 0)
    return Status::error("{}: was removed or replaced while the run read it; its data must stay as they are",
                         path_);
  if (now.st_mtim.tv_sec != opened_.st_mtim.tv_sec || now.st_mtim.tv_nsec != opened_.st_mtim.tv_nsec)
    return Status::error("{}: was written to while the run read it; its data must stay as they are", path_);
  return {};
}

}  // namespace gacc
