// Compiles the model that an artifact was made from once more, with other settings: runs the gaccc that lies
// beside this executable, since the runtime has no compiler of its own.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/artifact.h"

namespace gacc {

class Rebuilder {
 public:
  // Of the artifact's record (Artifact::model). `folder` is where gaccc lies.
  Rebuilder(const Artifact& artifact, std::string folder);
  ~Rebuilder();
  Rebuilder(const Rebuilder&) = delete;
  Rebuilder& operator=(const Rebuilder&) = delete;

  // Settings by dotted key, as after `--set`, on top of those the artifact was compiled with. The error says
  // why there is no such artifact: no gaccc, no record of the model, or gaccc's own reason.
  Result<Artifact> compile(const std::vector<std::pair<std::string, std::string>>& settings);
  // A temporary folder, removed at the end.
  Result<std::string> folder();
  // Whether the last compile failed by a fault of gaccc itself: an internal error, or a signal.
  bool faulty() const { return faulty_; }

 private:
  Status prepare();

  const Artifact& artifact_;
  std::string compiler_, folder_;
  bool faulty_ = false;
};

}  // namespace gacc
