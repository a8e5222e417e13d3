// Checks what an export computes (--check): compares a session's outputs with those of one that has its parameters from
// the written files alone.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/session/session.h"
#include "runtime/weights/saved.h"

namespace gacc {

// Returns the outputs for the first samples of the data, at most `most`.
Result<std::vector<float>> first_outputs(Session& session, const Plan& plan, const Dataset& data,
                                         int64_t most);

struct ExportCheck {
  std::string file;
  int64_t samples = 0;
  double difference = 0;  // the largest one of outputs, relative to the largest output
  double bound = 0;       // what rounding explains
  bool holds() const { return difference <= bound; }
};

// Overwrites the session with what was written, over what the run had loaded where that is an adapter (null: nothing),
// and compares its outputs with those it had.
Result<ExportCheck> check_export(Session& session, const Plan& plan, const Dataset& data,
                                 const SaveForm& written, const Weights* base,
                                 const std::vector<float>& outputs);

}  // namespace gacc
