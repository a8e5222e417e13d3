// A GGUF that is written after the pattern of another one: its metadata, names, shapes and types to the byte, with a
// plan's parameters in it (--save F.gguf --like BASE.gguf).
#pragma once
#include <string>
#include <vector>

#include "runtime/weights/weights.h"

namespace gacc {

class GgufTemplate {
 public:
  // Opens BASE. An error lists what of it does not fit the plan, and with `writes` the types in which no changed
  // numbers can be written. `merges`: weights get their adapters.
  Status open(const std::string& path, const Plan& plan, bool merges, bool writes = true);
  // Returns its general.architecture.
  std::string architecture() const;
  // Writes parameters, which it may change, atomically. A tensor whose numbers are BASE's stays as it lies there.
  Status write(const std::string& path, const Plan& plan, std::vector<NamedTensor>& parameters) const;

 private:
  Weights base_;
};

}  // namespace gacc
