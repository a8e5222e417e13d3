// What the checks of --verify have in common: one window run on a fresh device, and the comparison of two.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/self_check.h"
#include "runtime/session.h"

namespace gacc {

// What came of one window.
struct WindowOutcome {
  WindowReport report;
  std::vector<NamedTensor> gradients, parameters;  // mean gradients before, parameters after the update
};

// A device with an artifact loaded and initialised.
class Bench {
 public:
  Bench(const Artifact& artifact, const VerifyOptions& options) : artifact_(artifact), options_(options) {}
  Status open();
  // A window over the samples `order`, in launches of these sizes (they add up to the samples).
  Result<WindowOutcome> window(const Dataset& data, std::span<const int64_t> order,
                               std::span<const int64_t> sizes);
  // With a dynamic loss scale the first windows overflow until the scale fits: repeats the window until one
  // is applied. The scale that it then had, or 0 where the artifact has none.
  Result<float> settle(const Dataset& data, std::span<const int64_t> order, std::span<const int64_t> sizes);
  Status set_scale(float scale);  // 0: leave it
  Status close();                 // what a checking device found is an error
  Session& session() { return *session_; }

 private:
  const Artifact& artifact_;
  const VerifyOptions& options_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Session> session_;
};

// The farthest that one tensor is from the reference, by its norm-wise relative difference.
struct Deviation {
  std::string name;
  double value = 0;  // infinite when one is not finite
};
// By tensor, in their order; `floor` is the share of the norm of all tensors below which a tensor's own norm
// counts no more.
std::vector<Deviation> deviations(const std::vector<NamedTensor>& got,
                                  const std::vector<NamedTensor>& reference, double floor);
// Keeps the larger one of each tensor.
void keep_largest(std::vector<Deviation>& so_far, const std::vector<Deviation>& more);

}  // namespace gacc
