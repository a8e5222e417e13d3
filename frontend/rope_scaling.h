// Scaled rotary positions: how models that were trained on short texts turn their channels on long ones.
#pragma once
#include "frontend/config_json.h"
#include "frontend/schema.h"

namespace gacc::frontend {

// The factors of the angle of each pair of channels, and of the turned channels.
struct RopeScaling {
  std::vector<double> scales;
  double magnitude = 1;
  // The factors of texts of at most `original` positions; empty where these are the same.
  std::vector<double> short_scales{};
  int64_t original = 0;
};

// Computes a table `scaling` for `rotated` channels of a head with base `theta`, in windows of `length` positions.
RopeScaling rope_scaling(const Values& scaling, double theta, int64_t rotated, int64_t length);

// Returns what a table `scaling` comes to, in whichever way it is said: the factors in short texts, the magnitude, and
// the same in long ones.
ConfigValue scaling_numbers(const Values& scaling, double theta, int64_t rotated);

// Returns whether the keys of such a table agree with each other and with the head; reports what does not.
bool check_rope_scaling(const Values& scaling, int64_t rotated, Diag& diag);

}  // namespace gacc::frontend
