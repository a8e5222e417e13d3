// The artifact `step.ptx`: valid PTX whose leading comments carry the plan and the IR. Layout, line by line:
//
//   // gacc artifact 1 bytes=N crc32=XXXXXXXX      N and the CRC-32 are of everything after this line
//   //plan {...one JSON object on one line...}
//   //ir <one line of the planned module's text>   repeated
//   //end
//   <PTX>
#pragma once
#include <string>
#include <string_view>

#include "runtime/plan.h"

namespace gacc {

struct Artifact {
  Plan plan;
  std::string ir;   // the planned module's text
  std::string ptx;  // what follows the header; the whole file is valid PTX too
};

std::string write_artifact(const Artifact& artifact);
// Refuses a cut, altered or foreign text and an unknown version, in one sentence that begins with `name`.
Status read_artifact(std::string_view text, std::string_view name, Artifact& artifact);
Status load_artifact(const std::string& path, Artifact& artifact);

}  // namespace gacc
