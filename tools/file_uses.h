// The files that a command line names. Each program has one table of its options that read or write files; an
// output that is one of its inputs, or another output, makes the command line wrong.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace gacc {

enum class FileUse { reads, writes, updates };  // updates: reads and writes

struct FileOption {
  std::string_view option;  // as --help calls it
  FileUse use = FileUse::reads;
  std::vector<std::string> files;  // empty names: not given
  std::string_view in_place_of{};  // the option whose file this output may replace

  bool given() const {
    return std::any_of(files.begin(), files.end(), [](const std::string& file) { return !file.empty(); });
  }
};

// "-" is standard input or output, for the programs and options that know it.
inline std::string source_of(const std::string& path) { return path == "-" ? "/dev/stdin" : path; }
inline std::string target_of(const std::string& path) { return path == "-" ? "/dev/stdout" : path; }

// "", or which output would replace what, or which inputs would share a pipe. Files are compared, not names:
// links, hard links and other spellings are seen through, also of files that are not there yet.
std::string wrong_outputs(const std::vector<FileOption>& options);

}  // namespace gacc
