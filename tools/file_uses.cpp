#include "tools/file_uses.h"

#include <fmt/format.h>

#include <optional>

#include "runtime/atomic_file.h"

namespace gacc {
namespace {

struct Named {
  const FileOption* by = nullptr;
  std::string name;
  std::optional<FileIdentity> identity;
};

// Whether what is to be a file would have to be a folder of the other one.
bool above(const FileIdentity& file, const FileIdentity& other) {
  return !file.missing.empty() && file.device == other.device && file.inode == other.inode &&
         other.missing.starts_with(file.missing + "/");
}

}  // namespace

std::string wrong_outputs(const std::vector<FileOption>& options) {
  std::vector<Named> files;
  for (const FileOption& option : options)
    for (const std::string& file : option.files)
      if (!file.empty()) files.push_back({&option, file, identity_of(file)});
  for (auto one = files.begin(); one != files.end(); ++one)
    for (auto other = files.begin(); other != one; ++other)
      if (one->identity && one->identity->pipe && one->identity == other->identity &&
          one->by->use == FileUse::reads && other->by->use == FileUse::reads)
        return fmt::format("{} {} and {} {} would read one pipe, whose bytes come once", other->by->option,
                           other->name, one->by->option, one->name);
  for (const Named& output : files)
    for (const Named& other : files) {
      const FileOption &writes = *output.by, &too = *other.by;
      if (!output.identity || !other.identity || &writes == &too || writes.use == FileUse::reads) continue;
      if (above(*output.identity, *other.identity))
        return fmt::format("{} {} cannot be a file and the folder of {} {}", writes.option, output.name,
                           too.option, other.name);
      if (output.identity != other.identity || writes.in_place_of == too.option) continue;
      if (too.use != FileUse::writes)
        return fmt::format("{}: {} would replace the input {} ({})", writes.option, output.name, other.name,
                           too.option);
      if (writes.use == FileUse::writes)
        return fmt::format("{} {} and {} {} name the same file", writes.option, output.name, too.option,
                           other.name);
    }
  return "";
}

}  // namespace gacc
