// A data file's content, shared by the columns that lie in it. A large one stays in its file: it is mapped, so
// that processes of one machine share its pages, and it may be larger than memory.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/no_copy.h"
#include "runtime/status.h"

namespace gacc {

constexpr int64_t kLeastMapped = int64_t{16} << 20;  // bytes; smaller files are read

class FileBytes : NoCopy {
 public:
  explicit FileBytes(std::string content) : content_(std::move(content)), text_(content_) {}
  ~FileBytes();

  // The file, mapped if it is a regular one of at least `least` bytes, else read.
  static Result<std::shared_ptr<const FileBytes>> open(const std::string& path, int64_t least = kLeastMapped);

  bool mapped() const { return fd_ >= 0; }
  // Returns the text. A mapped file may shrink meanwhile: then looking raises a signal that ends the process; `read`
  // does not.
  std::string_view text() const { return text_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(text_)); }

  // Copies `to.size()` bytes from byte `first` on.
  Status read(size_t first, std::span<std::byte> to) const;
  // An error when a mapped file is no longer what was opened.
  Status unchanged() const;

 private:
  FileBytes(std::string path, int fd, const struct stat& info, std::string_view text)
      : path_(std::move(path)), fd_(fd), opened_(info), text_(text) {}

  const std::string content_;
  const std::string path_{};
  const int fd_ = -1;
  const struct stat opened_ {};
  const std::string_view text_;
};

using SharedFile = std::shared_ptr<const FileBytes>;

}  // namespace gacc
