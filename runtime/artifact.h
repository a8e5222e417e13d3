// The artifact `step.ptx`: valid PTX whose leading comments carry the IR. Layout, line by line:
//
//   // gacc artifact 9 bytes=N crc32=XXXXXXXX      format, N and the CRC-32 of everything after this line
//   //ir <one line of the scheduled module's text> repeated
//   //end
//   //sets ["train.accumulate=8", ...]            absent when there is no record of the model
//   //model <one line of the model file>          repeated
//   <PTX>
//
// All of it is ASCII, as ptxas wants it: JSON has \uNNNN, and in the lines of the IR and the model each byte
// outside 0x20..0x7e, and each backslash, is written \xNN. Artifact below holds them as they were.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan.h"

namespace gacc {

constexpr std::string_view kArtifactMagic = "// gacc artifact ";  // the file's first bytes

struct Artifact {
  Plan plan{};        // is in no file: who opens an artifact makes it of the IR (compiler/open_artifact.h)
  std::string ir{};   // the scheduled module's text
  std::string ptx{};  // what follows the header; the whole file is valid PTX too
  // The source that --verify compiles variants from: the model file's text, which may be empty, and KEY=VALUE of --set
  // in the order of the command line.
  std::string model{};
  std::vector<std::string> overrides{};
};

std::string write_artifact(const Artifact& artifact);
// Refuses a cut, altered or foreign text and an unknown version, in one sentence that begins with `name`.
Result<Artifact> read_artifact(std::string_view text, std::string_view name);
Result<Artifact> load_artifact(const std::string& path);

}  // namespace gacc
