// `gacc-exec --verify`: whether a compiled step keeps its promises on the user's own model and data. What is
// compared with what, and how far apart the two may be, is in docs/running.md.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/device.h"
#include "runtime/weights/weights.h"

namespace gacc {

struct VerifyOptions {
  std::string device = "cpu";  // as --device has it
  DeviceOptions device_options{};
  uint64_t seed = 0;
  double lr = 1e-3;
  bool shuffle = true;
  // Parameters to begin with; null: the model's initial ones.
  const Weights* loaded = nullptr;
  std::vector<float> class_weights{};  // as in Beginning
  std::string compiler_folder{};       // where gaccc lies
  // Reads and checks an artifact (compiler/open_artifact.h).
  std::function<Result<Artifact>(const std::string& path)> open{};
  std::function<bool()> interrupted{};            // asked after every launch. May be empty
  std::function<void(std::string_view)> print{};  // a piece of the report, with its line end
};

struct VerifyResult {
  int passed = 0;  // checks
  int failed = 0;
  int left_out = 0;  // each with its reason in the report
};

// An error when a check could not be made that should have been; a check that fails is none.
Result<VerifyResult> verify(const Artifact& artifact, const Dataset& data, const VerifyOptions& options);

}  // namespace gacc
