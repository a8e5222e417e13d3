// Which file a path names, however it is spelled.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace gacc {

// "a/b" -> "a", "b" -> ".", "/b" -> "/"
std::string folder_of(const std::string& path);

// Follows links until a name that is none. True when the path leads through /proc (as /dev/stdout and
// /dev/fd/1 do): such names stand for open files, which must not be replaced.
bool follow_links(std::string& path);

struct FileIdentity {
  uint64_t device = 0, inode = 0;
  std::string missing;  // of a file that is not there: its path from the folder of that device and inode
  bool pipe = false;    // what one reader has taken, another does not get
  bool operator==(const FileIdentity&) const = default;
};

// Equal for two paths when what is written to one is read from the other, now or as soon as the file is
// there. None where nothing could be lost: terminals, /dev/null and other character devices, and sockets.
std::optional<FileIdentity> identity_of(std::string path);

}  // namespace gacc
