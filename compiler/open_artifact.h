// Artifacts, checked and with their plans. A checksum tells of accidents; an artifact that was made or changed by
// hand has a right one. So its IR is verified like any text, and its plan is made of the IR, not read. No LLVM here:
// gacc-exec and libgacc open artifacts, whatever the device.
#pragma once
#include <string>

#include "ir/module.h"
#include "runtime/artifact.h"

namespace gacc {

// Makes the plan of an artifact that was read, and returns its module. An artifact is refused whose IR breaks a rule
// of docs/ir.md, has values that share bytes, or is for another GPU than the PTX; `name` begins the sentence.
Result<ir::Module> check_artifact(Artifact& artifact, const std::string& name);

// Reads a file, and does the same.
Result<Artifact> open_artifact(const std::string& path);

}  // namespace gacc
