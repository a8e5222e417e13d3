// Files that are either the old one or the whole new one: written beside the target under a temporary name,
// flushed to disk, then renamed over it. A full disk or a crash leaves the old file untouched.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/no_copy.h"
#include "runtime/status.h"

namespace gacc {

class AtomicFile : NoCopy {
 public:
  ~AtomicFile();  // an uncommitted file is removed

  Status open(const std::string& path);
  Status write(std::string_view bytes);
  // fsync, rename, fsync of the folder. `keep`: a name under which the old file stays; what has that name
  // moves to its free_name. (Where a file system knows no hard links, there is for a moment no file of the
  // old name.)
  Status commit(const std::string& keep = "");

 private:
  Status keep_old(const std::string& name) const;

  std::string path_, temporary_;
  int fd_ = -1;
};

// A folder of files that is either the old one or the whole new one: made beside it under a temporary name, then put in
// its place.
class AtomicFolder : NoCopy {
 public:
  ~AtomicFolder();  // an uncommitted folder is removed

  // Makes the temporary folder. Fails where the old one holds anything but files of the names `own`, which would go
  // with it.
  Status open(const std::string& path, std::span<const std::string_view> own);
  // Returns where to write a file of the folder.
  std::string file(std::string_view name) const { return temporary_ + "/" + std::string(name); }
  // Returns a status of such a file, with the folder's own name in its text.
  Status named(const Status& status) const;
  Status commit();

 private:
  Status check_old() const;

  std::string path_, temporary_;
  std::vector<std::string_view> own_;
};

// After a rename: so that the new name outlasts a power failure. The file itself is safe by then, whatever comes
// of this.
void sync_folder_of(const std::string& path);

// The words of the system for an errno; several threads may ask. And the usual errors of files.
std::string system_reason(int error);
Status cannot_read(std::string_view path, int error);
Status cannot_write(std::string_view path, int error);

// All of `bytes`, also where it takes several calls; false with errno where they cannot be written.
bool write_all(int fd, std::string_view bytes);

// The CRC-32 of zlib, of what comes behind bytes with the one given.
uint32_t crc32_of(std::string_view bytes, uint32_t before = 0);

// Says whether a file of that name is there, or a link that leads nowhere: reading that one is an error.
bool is_there(const std::string& path);

// The first of `name`, `name`.2, `name`.3 ... that no file has.
std::string free_name(const std::string& name);

// "a/b" -> "a", "b" -> ".", "/b" -> "/"
std::string folder_of(const std::string& path);
// Returns the path of a file in a folder, which may end in a slash.
std::string file_in(const std::string& folder, std::string_view name);
// Follows links until a name that is none. True when the path leads through /proc (as /dev/stdout and
// /dev/fd/1 do): such names stand for open files, which must not be replaced.
bool follow_links(std::string& path);

// The identity of the file that a path names, however it is spelled.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  std::string missing;  // of a file that is not there: its path from the folder of that device and inode
  bool pipe = false;    // what one reader has taken, another does not get
  bool operator==(const FileIdentity&) const = default;
};
// Equal for two paths when what is written to one is read from the other, now or as soon as the file is
// there. None where nothing could be lost: terminals, /dev/null and other character devices, and sockets.
std::optional<FileIdentity> identity_of(std::string path);

// Returns what is wrong with the ending of a path that the option writes: another format's than those of `own`, of
// which the first is offered. "" for nothing.
std::string wrong_ending(std::string_view option, const std::string& path,
                         std::span<const std::string_view> own);

// Fails where a file could not be put in place later, long before there is anything to write; "" names none. A pipe is
// not opened: its reader would see the end of it.
Status check_writable(const std::string& path);

Status write_file_atomically(const std::string& path, std::string_view bytes);
// The same; "-" is standard output.
Status write_output(const std::string& path, std::string_view bytes);

// A pipe or a device has no size to ask for, and perhaps no end.
constexpr int64_t kMostStreamed = int64_t{1} << 30;

// The whole file. Refuses folders, files beyond `limit` bytes, and others than regular ones beyond the
// smaller of `limit` and kMostStreamed.
Result<std::string> read_file(const std::string& path, int64_t limit = int64_t{1} << 36);
// The same; "-" is standard input.
Result<std::string> read_input(const std::string& path, int64_t limit = int64_t{1} << 36);
// The same of a model file, which has at most 64 MiB.
Result<std::string> read_model(const std::string& path);

}  // namespace gacc
