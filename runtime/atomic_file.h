// Files that are either the old one or the whole new one: written beside the target under a temporary name,
// flushed to disk, then renamed over it. A full disk or a crash leaves the old file untouched.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/status.h"

namespace gacc {

class AtomicFile {
 public:
  AtomicFile() = default;
  ~AtomicFile();  // an uncommitted file is removed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status open(const std::string& path);
  Status write(std::string_view bytes);
  Status commit();  // fsync, rename, fsync of the folder

 private:
  std::string path_, temporary_;
  int fd_ = -1;
};

Status write_file_atomically(const std::string& path, std::string_view bytes);
// The whole file. Refuses folders and files beyond `limit` bytes.
Status read_file(const std::string& path, std::string& bytes, int64_t limit = int64_t{1} << 36);

}  // namespace gacc
